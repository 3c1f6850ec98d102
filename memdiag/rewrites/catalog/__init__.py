"""The rewrites, one module each: a `REWRITE` and the functions `check` and `apply`."""
