"""Django's default connection, to a database of a test."""

import django
import psycopg


def connect_django(dsn):
    """Let Django's default connection lead to a database, and return it."""
    from django.conf import settings  # noqa: PLC0415 - needs its settings first
    from django.db import connections  # noqa: PLC0415

    place = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    known = {ours: place[name] for ours, name in names.items() if name in place}
    block = {"ENGINE": "django.db.backends.postgresql", **known}
    if not settings.configured:
        settings.configure(DATABASES={"default": block})
        django.setup()
    connections.settings["default"].update(known)
    connection = connections["default"]
    connection.settings_dict.update(known)
    connection.close()
    return connection
