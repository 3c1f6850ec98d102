"""Run a model in a child process and measure the memory of the child from outside."""
