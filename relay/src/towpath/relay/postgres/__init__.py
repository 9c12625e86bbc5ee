"""The only home of psycopg in the relay: the stream, the catalog, set-up, chunks."""
