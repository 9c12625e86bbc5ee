"""The stack's commands, and those of relay and sinks together."""
