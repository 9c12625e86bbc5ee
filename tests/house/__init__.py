"""Measures of the source code, each with its goal and a ceiling that only falls."""
