"""Whether a changed model is as good as the original: its outputs, its memory, its speed."""
