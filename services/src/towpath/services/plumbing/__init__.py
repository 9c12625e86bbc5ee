"""
The code that the shop's services share.

It includes problem documents, request bodies, the engine and its errors, units of work,
migrations, consumers, health, metrics, log records, and the WSGI server. None of it
depends on a service.
"""
