"""Models: read without loading their weights, indexed, and with inferred shapes."""
