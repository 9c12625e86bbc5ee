"""The relay's commands; each is imported when it is run."""
