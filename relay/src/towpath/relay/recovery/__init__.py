"""The state that a restart continues from: lineages, marks, settings. Does no I/O."""
