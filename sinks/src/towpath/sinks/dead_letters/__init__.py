"""
Dead letters of a sink, and the keys that are parked behind them.

The topic ``<prefix>.dead.<sink>`` is the source of truth: parked keys are read from it
at each start, and requests to replay, discard or erase are also records in it.
"""
