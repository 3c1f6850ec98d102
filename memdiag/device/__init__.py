"""The memory of a process on a GPU: what the process reports, and whose each byte is."""
