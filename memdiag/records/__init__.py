"""Frozen data that the rest of memdiag hands on, and the one strict JSON codec for it."""
