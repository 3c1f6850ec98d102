"""Code that runs inside the recorded program: standard library only, for Python 3.8 and newer."""
