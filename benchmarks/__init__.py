"""The numbers memdiag claims, each measured beside its peers in the same run."""
