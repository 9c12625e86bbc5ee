"""The relay's edge to the schema registry: the only home of its HTTP."""
