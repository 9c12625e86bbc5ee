"""How Postgres's text forms become values: one form per column, chosen once."""
