"""Snapshots from outside: their signals, their progress, and how both are shown."""
