"""The child process that is measured: standard library, numpy and onnxruntime only.

`child.py` is run by path, so that it works under any interpreter that has onnxruntime, whether or
not memdiag is installed there. It never imports from memdiag.
"""
