"""Sweeps: many models on several releases, and the answers of their store."""
