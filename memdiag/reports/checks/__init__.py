"""What a check found becomes text: for a terminal, a pull request, a code scanning service."""
