"""Apply the batches of a sink to its target. No module here uses Spark."""
