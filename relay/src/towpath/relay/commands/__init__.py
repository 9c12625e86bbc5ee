"""The operator's commands: status, state and its repair; the code that runs."""
