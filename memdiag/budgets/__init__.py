"""Budgets: the figures a model can be held to, how limits are written, and who exceeds them."""
