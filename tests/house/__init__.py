"""The state of the source as figures, each with its goal and a ceiling that falls."""
