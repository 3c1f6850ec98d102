"""The folder at the front of PYTHONPATH: a program can import nothing else of memdiag from it."""
