"""
The ``towpath`` command and the local stack.

``cli`` holds the commands, ``local`` the parts that run without containers, ``jars``
the Java archives that they need. Nobody imports this member; it imports entry points.
"""
