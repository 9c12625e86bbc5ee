"""The state that a restart continues from: lineages, marks and settings. Pure."""
