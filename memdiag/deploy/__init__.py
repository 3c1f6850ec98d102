"""Deployment of models: the memory limit that a container needs."""
