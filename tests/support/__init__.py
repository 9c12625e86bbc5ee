"""What tests with real servers share: a relay as a process, its topics, waiting."""
