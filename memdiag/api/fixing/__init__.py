"""What the search of `fix` is made of: changes, their candidates, attempts and the record."""
