"""What a comparison is made of: subjects, their columns, and the search over versions."""
