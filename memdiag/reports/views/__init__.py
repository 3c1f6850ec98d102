"""What a report says, as plain data: every reporter draws or prints the same views."""
