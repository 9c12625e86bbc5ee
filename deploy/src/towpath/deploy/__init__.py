"""
The ``towpath`` command and the local stack.

``cli`` holds the commands, ``local`` the parts that run without containers, ``jars``
the Java archives that they need. No other member imports this one.
"""
