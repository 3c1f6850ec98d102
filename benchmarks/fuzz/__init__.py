"""Fuzzing of ``check``, ``estimate`` and ``report`` with damaged models and records."""
