"""
Sinks write the stream into a cache, Postgres, a search index, a warehouse or webhooks.

``__main__`` wires a driver. ``engine`` owns Spark, ``kafka`` the broker, and each
package of ``targets`` one target, with the same file names. The rules between them
(``changes``, ``apply``, ``fold``, ``key_text``) are free of Spark and of targets. A
sink knows nothing of Spark.
"""
