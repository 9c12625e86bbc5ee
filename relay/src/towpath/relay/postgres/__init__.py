"""The only package of the relay that uses psycopg: stream, catalog, set-up, chunks."""
