"""X-rays of the processes of a recorded program: when they are taken, and by which process."""
