"""Recording of programs: the processes of an unmodified program, and their onnxruntime sessions."""
