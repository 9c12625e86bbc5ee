"""Turn records into changes: decode, route and transform them. No I/O."""
