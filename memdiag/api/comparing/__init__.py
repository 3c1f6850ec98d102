"""Measurement for `memdiag.api.compare`: subjects, columns side by side, search for a version."""
