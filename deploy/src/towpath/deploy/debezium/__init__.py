"""
Convert a Debezium Postgres connector's configuration to ``towpath.toml``.

A pure function takes the connector's properties, and returns a document and a finding
for each property.
"""
