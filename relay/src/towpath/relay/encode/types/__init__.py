"""Converts Postgres's texts to values: one form per column, chosen once."""
