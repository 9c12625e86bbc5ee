"""Webhooks: changes posted to a receiver, signed."""
