"""The recipes. Each module of this package builds a sample model."""
