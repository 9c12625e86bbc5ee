"""The ``towpath`` command as a module: ``python -m towpath.deploy.cli``."""

from towpath.deploy.cli.app import main

if __name__ == "__main__":
    main()
