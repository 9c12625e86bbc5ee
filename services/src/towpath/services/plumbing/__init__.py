"""
The parts that all services of the shop share.

They are problem documents, request bodies, the engine and its errors, one transaction
per command, migrations, health, log records, and the WSGI server. None of them depends
on a service.
"""
