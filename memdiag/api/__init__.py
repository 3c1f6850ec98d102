"""Use cases: each takes paths and options and returns a record; none of them prints."""
