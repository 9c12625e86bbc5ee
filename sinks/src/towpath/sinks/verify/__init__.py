"""
The verifier: every key and every column of a sink against the source, at rest.

``source`` reads what the database says now, in text that the database itself writes;
the sinks' readers say what they hold; ``shelf`` keeps that by key on disk, so that
memory stays small; ``forms`` says what is compared of a row or a document, ``compare``
tells the differences. Nothing here shares code with the
path that carried the rows, so that a mistake of the path cannot hide itself.
"""
