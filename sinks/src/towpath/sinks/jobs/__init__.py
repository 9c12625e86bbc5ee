"""
The jobs: one Structured Streaming query per sink. The only place that knows Spark.

``session`` starts the engine, ``query`` ties Kafka to a batch function, ``batch`` is
that function (and free of Spark), ``supervisor`` keeps one query alive, ``driver``
keeps several. Everything else is handed in by the root.
"""
