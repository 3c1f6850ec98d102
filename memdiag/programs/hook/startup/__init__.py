"""The folder at the front of PYTHONPATH. It has no other module that a program could import."""
