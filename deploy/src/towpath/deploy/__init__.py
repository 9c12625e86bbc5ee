"""
The commands of the whole platform, and the local stack.

``cli`` holds the commands, and ``local`` the parts that run without containers. No
other member of the workspace imports this one.
"""
