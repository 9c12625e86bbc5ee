"""
Sinks write the stream into a cache, Postgres, a search index, a warehouse or webhooks.

``__main__`` wires a driver. ``engine`` runs Spark, ``kafka`` talks to the broker, and
each package of ``targets`` writes to one target; files with the same purpose have the
same name in each. The rules that engine and targets share (``changes``, ``apply``,
``fold``, ``key_text``) depend on neither Spark nor a target. A sink does not depend on
Spark.
"""
