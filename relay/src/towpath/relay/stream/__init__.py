"""The stream: its steps become records, changed keys and facts of snapshots."""
