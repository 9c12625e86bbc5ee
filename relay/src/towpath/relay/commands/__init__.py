"""The operator's commands, and the import of the compiled modules."""
