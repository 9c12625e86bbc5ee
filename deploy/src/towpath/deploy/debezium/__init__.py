"""
Convert a Debezium Postgres connector's configuration to ``towpath.toml``.

Pure: a connector's properties in, a document and one finding per property out. Every
property has a finding.
"""
