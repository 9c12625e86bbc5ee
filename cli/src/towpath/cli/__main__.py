"""The ``towpath`` command as a module: ``python -m towpath.cli``."""

from towpath.cli.app import main

if __name__ == "__main__":
    main()
