"""The commands of the stack, and those that work on relay and sinks together."""
