"""
Dead letters of a sink: records set aside, and the keys that are parked behind them.

The topic ``<prefix>.dead.<sink>`` is the truth: what is parked is read from it at each
start, and orders to replay or to discard are records of it, too.
"""
