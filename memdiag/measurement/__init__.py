"""Watching a child process from outside while it loads and runs a model."""
