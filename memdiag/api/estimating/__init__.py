"""The parts of an estimate: the sizes of its points, their formula, the largest sizes that fit, and
the correction by measured points."""
