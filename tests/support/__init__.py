"""Helpers for tests: servers and processes, fakes and models, readers and waits."""
