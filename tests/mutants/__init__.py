"""Planted defects: the list, and the runner that checks that tests catch each."""
