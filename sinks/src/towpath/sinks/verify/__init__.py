"""
The verifier: every key and every column of a sink against the source.

Both may change meanwhile. ``source`` reads the database, as text that the database
itself writes; the sinks' readers return stored rows; ``suspects`` keeps both by key on
disk, so that memory stays small; ``forms`` defines what is compared of a row or a
document. A difference is a suspect (``compare``) until both sides were read again, one
after the other: ``progress`` waits for the sink, ``settle`` judges, ``repair`` requests
the wrong rows. Apart from a route's naming of rows and keys, nothing here shares code
with the path of the records, so that a mistake of the path cannot hide itself.
"""
