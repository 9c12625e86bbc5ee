"""The state of the whole platform: parts, relay, snapshots, sinks, offsets, rights."""
