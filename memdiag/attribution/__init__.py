"""The memory X-ray: which resident byte holds which weight, in which layout."""
