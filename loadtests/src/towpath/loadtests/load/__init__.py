"""The load on the shop: locust users, the leading process, lag samples, the report."""
