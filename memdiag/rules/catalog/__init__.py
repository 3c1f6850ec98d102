"""The rules, one module each: a `RULE`, a function `detect`, and the documentation as docstring."""
