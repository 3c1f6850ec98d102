"""What the search of `tune` is made of: points, attempts, files, the record and its snippet."""
