"""Drawing the nodes around a finding: which they are, how they are drawn, and after a rewrite."""
