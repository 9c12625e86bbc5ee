"""The search index: one document per row or aggregate, guarded by its version."""
