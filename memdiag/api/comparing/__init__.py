"""Measurement for `memdiag.api.compare`: column plans, columns side by side, and the search for a
version."""
