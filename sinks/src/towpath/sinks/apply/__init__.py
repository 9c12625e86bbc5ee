"""One batch applied to one sink. Free of Spark."""
