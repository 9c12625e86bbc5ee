"""The built-in kinds of sink."""
