"""The operator's commands: status, state and its repair."""
