"""
The shop's tables, version by version; applied at startup under a lock.

A released version is never edited: the next change is the next file here.
"""
