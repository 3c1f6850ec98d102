"""X-rays of the processes of a recorded program: when each is taken, by which process, for whom."""
