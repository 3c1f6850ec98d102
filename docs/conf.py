"""Settings of Sphinx for the documentation site, which `make docs` builds.

Sphinx and not MkDocs: it documents the Python API by importing it, its search works from files
without a server, and with -W a broken link or a page that no list names fails the build. The
source folder is the repository, so that a link from docs/ to benchmarks/ or to the gallery is the
same on the site and in a checkout. Furo needs nothing from another host.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402 - it is next to this file

import memdiag  # noqa: E402 - nothing may come between these imports

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "memdiag"
author = "The memdiag authors"
release = version = memdiag.__version__
copyright = author

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "benchmarks/README.md",
    "reports/README.md",
    "reports/gallery/**",
    "CHANGELOG.md",
]
# Folders that need not be searched for pages.
exclude_patterns = [".*", "build", "dist", "memdiag", "sample_models", "tests"]

html_theme = "furo"
html_title = f"memdiag {release}"
html_copy_source = False
html_show_sphinx = False
# The start page is docs/index.html; index.html at the top leads to it.
html_extra_path = ["site_root"]
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_search_scorer = str(HERE / "search_scorer.js")

# Headings have anchors, so that pages can link to them.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings = [
    # Reports begin with a heading of the second level, because they are pasted into pull requests.
    "myst.header",
    # Outputs of commands are not in the language of the block that they are in.
    "misc.highlighting_failure",
]

# Notebooks are shown with the output that they are stored with; `make test-all` executes them.
nb_execution_mode = "off"

# Lists of pages below pages that are also read outside of the site, where they would be code.
PAGES_BELOW = {
    "docs/pytest": "example/README",
    "docs/rules/README": "[!R]*",
    "reports/README": "gallery/*/*",
}

# Docstrings quote names with one backtick.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _generated_pages(app: "Sphinx", env: "BuildEnvironment", *_: set[str]) -> list[str]:
    """Return the pages that depend on code, which are read again in each build."""
    return [
        name
        for name in env.found_docs
        if name.startswith("docs/reference/")
        and reference_pages.generated_parts(Path(env.doc2path(name)).read_text())
    ]


def _fill(app: "Sphinx", name: str, source: list[str]) -> None:
    """Put the generated parts, and the list of pages below, into a page that was read."""
    source[0] = reference_pages.fill(source[0])
    if name in PAGES_BELOW:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{PAGES_BELOW[name]}\n```\n"


def setup(app: "Sphinx") -> None:
    """Register the functions that Sphinx calls."""
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _generated_pages)
