"""Planted defects: the list, and the runner that checks that a test fails on each."""
