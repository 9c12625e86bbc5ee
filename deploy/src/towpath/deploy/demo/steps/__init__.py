"""The demo's steps: each function does one thing and returns when it is done."""
