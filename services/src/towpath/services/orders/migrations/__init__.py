"""
The shop's tables, version by version; applied at start under a lock.

A version is never edited once it has been applied anywhere: the next change is the next
file in ``versions``.
"""
