"""The parts of an estimate: the sizes of its points, the largest sizes that fit, and
the correction by measured points."""
