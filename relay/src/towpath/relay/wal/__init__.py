"""Bytes in, values out: nothing here waits, opens or knows a socket."""
