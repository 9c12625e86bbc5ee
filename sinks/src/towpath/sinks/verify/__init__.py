"""
The verifier, which compares every key and every column of a sink with the source.

Both sides can change during a comparison. ``source`` reads the database, as text that
the database itself writes; the sinks' readers return stored rows; ``suspects`` keeps
digests of these, and the differing keys, on disk, so that memory use stays small;
``forms`` defines the compared values of a row or a document. A difference is a suspect
(``compare``) until both sides have been read again: ``progress`` waits for the sink,
``settle`` judges, ``repair`` refetches the wrong rows. The comparison shares only
routing, transforms, and the texts of keys and single values with the replication path,
so it finds the effects of a bug anywhere else in that path.
"""
