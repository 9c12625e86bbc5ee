"""One module for each version, oldest first by its number."""
