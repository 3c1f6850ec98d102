"""The commands: each module here is one, named like it, with a function `command` that returns
the exit code. What is costly to import is imported inside it, so that `--help` stays quick."""
