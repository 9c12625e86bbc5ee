"""Helpers of tests: servers and processes, fakes and models, readers and waits."""
