"""
The parts that services of the shop share.

Among them are problem documents, request bodies, the engine and its errors, one
transaction per command, migrations, consumers, health, metrics, log records, and the
WSGI server. None of them depends on a service.
"""
