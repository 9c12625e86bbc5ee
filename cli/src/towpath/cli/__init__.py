"""The ``towpath`` command: it runs the commands of the installed packages."""
