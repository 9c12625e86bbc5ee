"""Turns the steps of the stream into records, changed keys and snapshot facts."""
