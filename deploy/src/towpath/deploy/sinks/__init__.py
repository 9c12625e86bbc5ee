"""The lifecycle of a sink: checked against its tables, filled, refilled, dropped."""
