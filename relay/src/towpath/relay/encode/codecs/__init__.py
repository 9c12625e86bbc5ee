"""Codecs of keys and values: JSON, JSON with its schema, and Avro."""
