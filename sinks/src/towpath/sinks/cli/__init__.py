"""The sinks' commands; each is imported when it is run."""
