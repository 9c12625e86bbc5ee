"""
From a Debezium Postgres connector's configuration to ``towpath.toml``.

Decide, do not do: a connector's properties in, a document and one finding per property
out. Nothing is left out in silence. Only ``catalog`` speaks to a server, if asked to.
"""
