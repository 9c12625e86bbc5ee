"""Files that a sink keeps in its folder."""
