"""The only package that knows Spark: one query per sink."""
