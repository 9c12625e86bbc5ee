"""
What every service of the shop needs and none should write twice.

Problem documents, reading a request, the engine and its errors, one transaction per
command, migrations, health, log records, and the WSGI server. Nothing here knows what
the shop sells.
"""
