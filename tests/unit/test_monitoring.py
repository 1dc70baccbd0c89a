"""Alert rules, their runbooks, and dashboards: against the list of metrics and by promtool.

`tests/process/test_metrics_door.py` compares that list, docs/metrics.md, with a real scrape.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.patience import END_S

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy/prometheus/qmd-alerts.yml"
TESTS = ROOT / "deploy/prometheus/qmd-alerts.test.yml"
RUNBOOKS = ROOT / "docs/runbooks"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
SCHEMA = ROOT / "tests/data/grafana/dashboard.ts"
GRAFANA = ROOT / ".venv/grafana/node_modules"
TYPESCRIPT = GRAFANA / ".bin/tsc"
KINDS_OF_PANELS = {"row", "stat", "table", "timeseries", "heatmap", "state-timeline"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def test_an_alert_about_commits_fires_before_the_daemon_gives_up() -> None:
    """A commit with new messages waits for a limited time: then the daemon stops."""
    from storage.options import StorageOptions

    (rule,) = (each for each in rules() if each["alert"] == "QmdCommitsWait")
    number, unit = re.fullmatch(r"(\d+)([smh])", rule["for"]).groups()  # type: ignore[union-attr]
    scrape_s = 15

    for_s = int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    assert for_s + scrape_s < StorageOptions().full_disk_patience_s


def promtool(*words: object) -> str:
    command = ["promtool", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=END_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def listed() -> set[str]:
    """Return the names of the samples of all metrics in the manual."""
    manual = (ROOT / "docs/metrics.md").read_text()
    names = set(re.findall(r"`(qmd_\w+)`", manual))
    histograms = re.findall(r"^\| `(qmd_\w+)` \| histogram", manual, re.MULTILINE)
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def unknown(expression: str) -> set[str]:
    """Return the metrics of an expression that the manual does not list."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\bqmd_\w+", bare)) - listed()


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each query of the dashboards."""
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                yield f"{file.name}: {panel['title']}", target["expr"]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    alerts = {rule["alert"]: rule for rule in rules()}

    assert alerts.keys() == {file.stem for file in RUNBOOKS.glob("*.md")}
    manual = (ROOT / "docs/alerts.md").read_text()
    for name, rule in alerts.items():
        page = (RUNBOOKS / f"{name}.md").read_text()
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f"`{rule['expr']}`" in page
        assert "\n## Look\n" in page
        assert "\n## Do\n" in page
        assert f"[{name}](runbooks/{name}.md)" in manual


def test_the_commands_of_the_runbooks_exist() -> None:
    from qmd.cli import main

    context = click.Context(main)
    text = "".join(file.read_text() for file in RUNBOOKS.glob("*.md"))
    found = set(re.findall(r"`qmd ([a-z-]+)((?: [a-z-]+)?)", text))
    assert found
    for first, second in found:
        command = main.get_command(context, first)
        assert command is not None, first
        if isinstance(command, click.Group):
            assert second.strip() in command.commands, (first, second)


def test_rules_and_dashboards_use_metrics_that_exist() -> None:
    wrong = {rule["alert"]: unknown(rule["expr"]) for rule in rules()}
    wrong |= {place: unknown(text) for place, text in expressions()}

    assert {place: names for place, names in wrong.items() if names} == {}


@needs_promtool
def test_promtool_accepts_the_rules_and_each_alert_fires_as_its_tests_say() -> None:
    promtool("check", "rules", "--lint-fatal", RULES)
    promtool("test", "rules", TESTS)

    tested = re.findall(r"alertname: (\w+)", TESTS.read_text())
    # In one case it fires, and in the other one it does not.
    assert sorted(tested) == sorted(2 * [rule["alert"] for rule in rules()])


@needs_promtool
def test_prometheus_understands_each_query_of_the_dashboards(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "1m", "$instance": "a:1809", "$queue": ".*"}
    records = []
    for number, (_, text) in enumerate(expressions()):
        for name, value in {**variables, "$destination": ".*"}.items():
            text = text.replace(name, value)
        records.append({"record": f"query:{number}", "expr": text})
    assert records
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))

    promtool("check", "rules", file)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_has_the_structure_that_grafana_expects(file: Path) -> None:
    dashboard = json.loads(file.read_text())

    assert dashboard["id"] is None  # given at the import
    assert dashboard["uid"] == f"qmd-{file.stem}"
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["tags"] == ["qmd"]
    known = {each["name"] for each in dashboard["templating"]["list"]}
    everything = list(panels(dashboard))
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        assert panel["type"] in KINDS_OF_PANELS
        assert panel["title"]
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "1"}
            assert used <= known, panel["title"]
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)


@pytest.mark.skipif(not TYPESCRIPT.exists(), reason="the schema of Grafana: .ci/run installs it")
def test_the_schema_of_grafana_has_every_property_of_the_dashboards(tmp_path: Path) -> None:
    """The types that Grafana publishes as @grafana/schema, checked by the compiler."""
    shutil.copy(SCHEMA, tmp_path)
    (tmp_path / "node_modules").symlink_to(GRAFANA)
    head = 'import type { Ours } from "./dashboard";\nexport const dashboard: Ours = '
    for file in DASHBOARDS:
        (tmp_path / f"{file.stem}.ts").write_text(head + file.read_text())
    wrong = head + DASHBOARDS[0].read_text().replace('"gridPos"', '"gridPlace"')
    (tmp_path / "wrong.ts").write_text(wrong)
    options = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext")
    names = [f"{file.stem}.ts" for file in DASHBOARDS]

    done = subprocess.run(
        [TYPESCRIPT, *options, "--moduleResolution", "bundler", *names, "wrong.ts"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=END_S,
    )  # fmt: skip

    faults = done.stdout.splitlines()
    assert [line for line in faults if not line.startswith("wrong.ts") and line[0] != " "] == []
    assert any("gridPlace" in line for line in faults), done.stdout + done.stderr


def test_the_three_dashboards_are_there() -> None:
    assert [file.stem for file in DASHBOARDS] == ["fleet", "host", "queue"]
