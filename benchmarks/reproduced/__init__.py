"""Public results, each measured again: one a file, with `TITLE` and ``measure(setting)``."""
