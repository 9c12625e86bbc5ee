"""Django's default connection, to a test's database."""

import django
import psycopg


def connect_django(dsn):
    """Point Django's default connection at a database, and return it."""
    from django.conf import settings  # noqa: PLC0415 - needs its settings first
    from django.db import connections  # noqa: PLC0415

    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    known = {ours: parts[name] for ours, name in names.items() if name in parts}
    block = {"ENGINE": "django.db.backends.postgresql", **known}
    if not settings.configured:
        settings.configure(DATABASES={"default": block})
        django.setup()
    connections.settings["default"].update(known)
    connection = connections["default"]
    connection.settings_dict.update(known)
    connection.close()
    return connection
