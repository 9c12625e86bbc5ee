"""The ``towpath`` command; a module is imported when one of its commands is run."""
