"""The relay's client of the schema registry; no other package sends it requests."""
