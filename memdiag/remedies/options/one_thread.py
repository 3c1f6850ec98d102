"""The session runs in the calling thread alone."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="one-thread",
    does="Kernels run in the calling thread: no scratch memory and stack for each thread.",
    hurts="Large operators take as many times longer as there were threads.",
    session={"intra_op_num_threads": "1"},
)
