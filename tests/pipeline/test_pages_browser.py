"""The pages in a real browser: on a narrow screen, and checked by axe-core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from tests.optional import needs
from tests.process.command_line import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs("playwright", reason="playwright is not installed"),
]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
JOBS = ("audit", "latency", "dead-letters", "traffic", "slo")
NARROW = 390
END_S = 300

# One process for all commands: each would import the libraries of the pipeline again.
COMMANDS = """
import json, sys
from click.testing import CliRunner
from qmd.cli import main
for words in json.load(sys.stdin):
    done = CliRunner().invoke(main, ["pipeline", *words])
    if done.exit_code:
        sys.exit(f"{words}: {done.output} {done.exception!r}")
"""
# Cards that are wider inside than outside, and whether the page itself is wider than the screen.
MEASURE = """() => {
  const wide = [...document.querySelectorAll("section, .verdict, table")]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.outerHTML.slice(0, 99));
  if (document.documentElement.scrollWidth > innerWidth) wide.push("the page");
  return wide;
}"""
CHECK = """rules => axe.run(document, rules).then(found => found.violations.map(
  each => each.id + ": " + each.nodes[0].html.slice(0, 99)))"""

# Those whose result depends on the width: the others are checked once.
LOOKS = {"runOnly": ["scrollable-region-focusable", "target-size", "nested-interactive"]}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the pages of all jobs over one fleet with faults of every kind."""
    if BROWSER is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("pages")
    fleet = str(folder / "fleet")
    goals = folder / "goals.toml"
    goals.write_text('[[objective]]\nname = "stored"\nwithin = "1h"\npercent = 1.0\n')
    more = {"audit": ("--fail-on", "none"), "latency": (), "slo": ("--objectives", str(goals))}

    def words(job: str) -> tuple[str, ...]:
        return "--output", str(folder / job), *more.get(job, ("--engine", "embedded"))

    commands = [
        ["generate", fleet, "--hosts", "6", "--messages", "3000", "--faults", "all"],
        # The second page of an audit has a trend.
        *(["run", job, "--input", fleet, *words(job)] for job in (*JOBS, "audit")),
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=ROOT, input=json.dumps(commands), timeout=2 * END_S,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {job: folder / job / "report.html" for job in JOBS}


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path]) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, page: Path, width: int) -> Any:
    shown = browser.new_page(viewport={"width": width, "height": 2000})
    shown.goto(page.as_uri(), timeout=1000 * END_S)
    return shown


def test_tables_and_texts_stay_in_their_cards_on_a_narrow_screen(pages, browser):
    for job, page in pages.items():
        shown = opened(browser, page, NARROW)

        assert shown.evaluate(MEASURE) == [], job
        shown.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: .ci/run does so")
@pytest.mark.parametrize(("width", "rules"), [(500, LOOKS), (1200, {})])
def test_axe_finds_nothing(pages, browser, width, rules):
    axe = AXE.read_text()
    for job, page in pages.items():
        shown = opened(browser, page, width)
        shown.evaluate(axe)

        assert shown.evaluate(CHECK, rules) == [], job
        shown.close()


COUNT = """() => {
  const rows = () => [...document.querySelectorAll("#t1 tbody tr")]
    .filter(each => each.offsetParent !== null).length;
  const counted = [rows()];
  const pick = document.querySelectorAll("#t1 fieldset:first-of-type input");
  pick[1].checked = true; counted.push(rows());
  counted.push(Number(pick[1].parentElement.querySelector("span").textContent.replace(",", "")));
  pick[0].checked = true; document.querySelector("#t1-every").checked = true; counted.push(rows());
  return counted;
}"""


def test_a_filter_shows_the_rows_of_a_host_without_a_script_of_the_page(pages, browser):
    page = pages["audit"].read_text()
    assert "<script" not in page

    few, of_host, announced, every = opened(browser, pages["audit"], 1200).evaluate(COUNT)

    assert few == 25
    assert 0 < of_host == announced < every
    assert every > few
    assert "runs/00000001-" in page  # the earlier page
