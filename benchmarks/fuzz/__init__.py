"""Fuzzing of ``check``, ``inspect`` and ``report`` with damaged models and records."""
