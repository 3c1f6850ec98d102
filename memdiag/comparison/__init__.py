"""What can be set side by side: optimizers, runtimes, and what differs between two columns."""
