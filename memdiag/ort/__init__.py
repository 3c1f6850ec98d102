"""Predictions of how onnxruntime treats a model, from its graph and the release."""
