"""The files that a sink keeps in its folder."""
