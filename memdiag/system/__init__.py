"""Processes and their limits, as the operating system reports them."""
