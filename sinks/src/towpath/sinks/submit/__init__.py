"""
The driver of sinks as a file for ``spark-submit``: ``__main__.py``.

The file is alone in its folder, because Python searches the folder of the started file
for modules before all others.
"""
