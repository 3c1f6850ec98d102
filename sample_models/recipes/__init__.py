"""The recipes: every file here is one, found by being here."""
