"""
Incremental snapshots: existing rows are read while the stream continues.

The package is pure: nothing in it uses a socket, a file, a thread or a clock. The
driver takes facts and returns effects; the loop and the worker in ``relay/postgres``
perform them.

The rule: a commit can be in the log before any query sees it, so the textbook window
(drop a chunk's row if its key is seen between the watermarks) lets stale rows through
and brings deleted ones back. Here a row is dropped when its key has a streamed change
after the low watermark, **or** one from any transaction, however early in the log, that
the chunk's own snapshot does not see. So recording begins at a start mark before the
first chunk, and no chunk is read until everything streamed before that mark is visible.
"""
