"""The ``towpath`` command: one module per group, imported when its command is said."""
