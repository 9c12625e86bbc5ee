"""Requests snapshots from the relay, reads its answers, and shows the progress."""
