"""Measurement for `memdiag.api.compare`: column plans, columns side by side, search for a
version."""
