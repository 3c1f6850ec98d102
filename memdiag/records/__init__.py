"""Records, the frozen data that packages pass to each other, and their JSON codec."""
