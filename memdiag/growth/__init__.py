"""Growth of memory over runs: moments, slopes and the verdict."""
