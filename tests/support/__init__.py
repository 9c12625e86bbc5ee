"""Helpers of tests with real servers: a relay as a process, its topics, waiting."""
