"""Planted defects: the list, and the runner that proves that a test fails on each."""
