"""
The verifier: every key and every column of a sink against the source.

Both may change meanwhile. ``source`` reads what the database says, in text that the
database itself writes; the sinks' readers say what they hold; ``digests`` keeps that by
key on disk, so that memory stays small; ``forms`` says what is compared of a row or a
document. What is not the same is a suspect (``compare``, ``suspects``), until both
sides were looked at again, behind one another: ``catch_up`` waits for the sink,
``settle`` judges, ``repair`` asks for what is wrong. But for what a route makes of rows
and keys, nothing here shares code with the path that carried them, so that a mistake of
the path cannot hide itself.
"""
