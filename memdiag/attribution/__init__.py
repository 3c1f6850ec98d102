"""The memory X-ray: the owner of every resident byte, and the copies of weights by layout."""
