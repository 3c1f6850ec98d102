"""Evaluating a changed model beside the original: outputs, memory, latency and validity."""
