"""Comparison of columns: versions of onnxruntime, optimizers, models, saved profiles."""
