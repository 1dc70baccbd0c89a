"""The pages in a real browser: on a narrow screen, and checked by axe-core."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from tests.process.command_line import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
JOBS = ("audit", "latency", "dead-letters", "traffic", "slo")
NARROW = 390
END_S = 300

# Cards that are wider inside than outside, and whether the page itself is wider than the screen.
MEASURE = """
const frame = document.querySelector("iframe").contentDocument;
const wide = [...frame.querySelectorAll("section, .verdict, table")]
  .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML.slice(0, 99));
if (frame.documentElement.scrollWidth > %d) wide.push("the page");
document.title = "RESULT" + JSON.stringify(wide) + "END";
"""
CHECK = """
axe.run(document).then(found => {
  document.title = "RESULT" + JSON.stringify(found.violations.map(
    each => each.id + ": " + each.nodes[0].html.slice(0, 99))) + "END";
});
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the pages of all jobs over one fleet with faults of every kind."""
    if BROWSER is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("pages")

    def pipeline(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "qmd", "pipeline", *arguments],
            check=True,
            capture_output=True,
            timeout=END_S,
        )

    fleet = str(folder / "fleet")
    pipeline("generate", fleet, "--hosts", "6", "--messages", "3000", "--faults", "all")
    goals = folder / "goals.toml"
    goals.write_text('[[objective]]\nname = "stored"\nwithin = "1h"\npercent = 1.0\n')
    for job in JOBS:
        more = {
            "audit": ("--fail-on", "none"), "latency": (), "slo": ("--objectives", str(goals)),
        }.get(job, ("--engine", "embedded"))  # fmt: skip
        pipeline("run", job, "--input", fleet, "--output", str(folder / job), *more)
    # The second page of an audit has a trend.
    pipeline("run", "audit", "--input", fleet, "--output", str(folder / "audit"),
             "--fail-on", "none")  # fmt: skip
    return {job: (folder / job / "report.html").read_text() for job in JOBS}


def shown(folder: Path, page: str, *arguments: str) -> list[Any]:
    """Return the list that the script of a page puts into its title."""
    file = folder / "page.html"
    file.write_text(page)
    assert BROWSER is not None
    text = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=60000", f"--user-data-dir={folder / 'profile'}"),
            *(*arguments, file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=END_S,
        check=True,
    ).stdout
    found = re.search("RESULT(.*?)END</title>", text, re.DOTALL)
    assert found is not None, text[:500]
    listed: list[Any] = json.loads(html.unescape(found[1]))
    return listed


def test_tables_and_texts_stay_in_their_cards_on_a_narrow_screen(pages, tmp_path):
    for job, page in pages.items():
        frame = f'<iframe srcdoc="{html.escape(page)}" style="width:{NARROW}px;height:900px">'
        script = f"addEventListener('load', () => {{ {MEASURE % NARROW} }})"

        wide = shown(tmp_path, f"<!DOCTYPE html>{frame}</iframe><script>{script}</script>")

        assert wide == [], job


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: .ci/run does so")
@pytest.mark.parametrize("width", [500, 1200])
def test_axe_finds_nothing(pages, tmp_path, width):
    axe = AXE.read_text().replace("</script", "<\\/script")
    for job, page in pages.items():
        # The page itself permits no script.
        open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        checked = open_page.replace(
            "</body>", f"<script>{axe}</script><script>{CHECK}</script></body>"
        )

        assert shown(tmp_path, checked, f"--window-size={width},2000") == [], job


COUNT = """
const rows = () => [...document.querySelectorAll("#t1 tbody tr")]
  .filter(each => each.offsetParent !== null).length;
const counted = [rows()];
const pick = document.querySelectorAll("#t1 fieldset:first-of-type input");
pick[1].checked = true; counted.push(rows());
counted.push(Number(pick[1].parentElement.querySelector("span").textContent.replace(",", "")));
pick[0].checked = true; document.querySelector("#t1-every").checked = true; counted.push(rows());
document.title = "RESULT" + JSON.stringify(counted) + "END";
"""


def test_a_filter_shows_the_rows_of_a_host_without_a_script_of_the_page(pages, tmp_path):
    page = pages["audit"]
    assert "<script" not in page
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)

    few, of_host, announced, every = shown(
        tmp_path, open_page.replace("</body>", f"<script>{COUNT}</script></body>")
    )

    assert few == 25
    assert 0 < of_host == announced < every
    assert every > few
    assert "runs/00000001-" in page  # the earlier page
