"""
The driver of sinks as a file that ``spark-submit`` takes: ``__main__.py``.

It stands alone in its folder, because Python looks for modules beside the file that it
is started with, before it looks anywhere else.
"""
