"""Budgets and baseline files: limits of a model's figures, their syntax and their evaluation."""
