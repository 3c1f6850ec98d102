"""What ends a waste: rewrites of the graph, and options of the session."""
