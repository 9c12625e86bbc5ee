"""Records as changes: decoded, routed, in columns. Pure."""
