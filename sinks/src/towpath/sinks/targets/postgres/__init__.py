"""The Postgres sink: tables of another database, as read models."""
