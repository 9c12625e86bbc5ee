"""
The driver of sinks as a file for ``spark-submit``: ``__main__.py``.

It is alone in its folder, because Python searches the folder of the started file before
all others for modules.
"""
