"""Search for the rewrites that reduce a model's memory, each verified and measured."""
