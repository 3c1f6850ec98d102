"""Evaluating a changed model against the original: outputs, memory, latency and validity."""
