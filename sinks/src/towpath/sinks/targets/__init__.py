"""The kinds of sink that come with the platform."""
