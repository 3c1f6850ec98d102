"""How large a report's page is, and how fast it opens: ``python -m benchmarks.page``.

A model of 20,000 nodes and 5,000 weights, X-rayed at the end of every phase, and a real one are
profiled, and their pages opened in a headless Chromium that is already running. The figures go
to ``benchmarks/README.md``.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import memdiag
from benchmarks.browser import start
from benchmarks.check import many_nodes
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.statistics import spread
from memdiag.reports.profile import REPORT
from memdiag.runner.machine import describe_machine

MB = 1e6
_PATIENCE_S = 60

# Notes when the first chart is there, without a word about it in the page itself.
_WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("#timeline .scatterlayer .trace")) return;
  observer.disconnect();
  window.drawnAt = performance.now();
}).observe(document, { childList: true, subtree: true });
"""
_OPENED = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
_DRAWN = "return window.drawnAt"


class Opening(NamedTuple):
    """One opening of a page, in seconds since the navigation began."""

    load_s: float
    drawn_s: float


def main() -> None:
    """Profile the models, open their pages, and write the figures into the README."""
    parser = argparse.ArgumentParser(description="How fast pages open.")
    parser.add_argument("--rounds", type=int, default=5, help="openings a page (default 5)")
    rounds = parser.parse_args().rounds
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        many = folder / "many.onnx"
        many_nodes(many)
        profiles = {
            "20,000 nodes, 5,000 weights": memdiag.profile(many, xray="phases"),
            "minilm_int8": memdiag.profile(real_models()["minilm_int8"]),
        }
        browser = start(folder)
        try:
            browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
            for title, profile in profiles.items():
                page = folder / REPORT.file_name("html")
                page.write_bytes(REPORT.render(profile, "html"))
                opened = [open_page(browser, page) for _ in range(rounds)]
                earlier, found = profile.phase_attributions, profile.attribution
                counts = (
                    str(len(earlier) + (found is not None)),
                    f"{len(found.copies) if found else 0:,}",
                )
                rows.append(row(title, counts, page.stat().st_size, opened))
                print(*rows[-1], sep=" | ", flush=True)
            version = browser.capabilities["browserVersion"]
        finally:
            browser.quit()
    machine = describe_machine(memdiag.__version__, None, None)
    header = ["model", "X-rays", "copies", "page, MB", "load event, s", "first chart drawn, s"]
    replace_part(
        "page",
        f"{machine.cpu}, {machine.cpu_count} processors; Chromium {version}, headless and already"
        f" running; medians of {rounds} openings, smallest and largest in brackets."
        f"\n\n{table(header, rows)}",
    )


def open_page(browser: Any, page: Path) -> Opening:
    """Open `page` and return how long it took."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get("about:blank")
    browser.get(page.as_uri())
    wait = WebDriverWait(browser, _PATIENCE_S)
    load_ms: float = wait.until(lambda page: page.execute_script(_OPENED))
    drawn_ms: float = wait.until(lambda page: page.execute_script(_DRAWN))
    return Opening(load_ms / 1e3, drawn_ms / 1e3)


def row(title: str, counts: tuple[str, str], size: int, opened: list[Opening]) -> list[str]:
    """Return a row of the table; `counts` are the X-rays and the copies."""
    return [
        title,
        *counts,
        f"{size / MB:.2f}",
        spread([each.load_s for each in opened]).text(digits=2),
        spread([each.drawn_s for each in opened]).text(digits=2),
    ]


if __name__ == "__main__":
    main()
