"""
Webhooks: changes posted to somebody else's server, signed.

``payload`` writes requests, ``answer`` reads what the receiver says, ``client`` sends,
``sink`` keeps the order. A webhook has no memory of its own: the guard by position is
the receiver's, and ``docs/webhooks.md`` says what that asks of it.
"""
