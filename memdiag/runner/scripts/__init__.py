"""Scripts of the child processes: standard library, numpy and onnxruntime only.

Each is run by its path, so that it works under any interpreter that has onnxruntime, whether or not
memdiag is installed there. None imports from memdiag.
"""
