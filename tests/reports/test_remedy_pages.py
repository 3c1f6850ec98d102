"""What ``memdiag explain`` says of rewrites, options and optimizers."""

import pytest

from memdiag.api.optimizer_outputs import optimizer_names
from memdiag.reports.remedy_pages import remedy_page, remedy_page_names
from memdiag.tuning.tuning_options import tuning_options


def test_everything_that_a_search_tries_is_explained() -> None:
    tried = {*optimizer_names(), *(option.name for option in tuning_options()), "rewrite"}
    assert tried <= {*remedy_page_names()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("externalize", "A remedy for `"),
        ("arena-off", "Set by: session option `enable_cpu_mem_arena=false`"),
        ("device-nhwc", "Set by: option `prefer_nhwc=1` of CUDAExecutionProvider"),
        ("onnxslim", "onnxslim folds constants"),
        ("onnxruntime-all", "for this release of onnxruntime and this kind of CPU"),
        ("quantize-int4", "it is tried with `--max-difference`"),
        ("rewrite", "Tried by `memdiag fix`."),
    ],
)
def test_a_page_says_what_is_done_and_what_limits_it(name: str, expected: str) -> None:
    page = remedy_page(name)
    assert page.startswith(f"# {name}\n")
    assert expected in page


def test_an_unknown_name_has_no_page() -> None:
    assert remedy_page("memdiag-fix") == ""
