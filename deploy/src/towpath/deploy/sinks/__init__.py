"""The life of a sink: checked against its tables, filled, filled again, dropped."""
