"""The load on the shop: Locust users, the leading process, lag samples and reports."""
