"""Any fleet, its logs in any parts, over any nights: the last run says what one run over all says.

`python -m tests.pipeline.nights --cases 1000 --first 0` runs many cases and prints those that fail.
A case is a number; the same number is the same case.

"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.generator import Fleet as GeneratedFleet
from pipeline.generator import generate, parse_faults
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from pipeline.report.outcome import write_audit
from pipeline.results.runs import Results
from tests.pipeline.foreign_chance import fleet_of_ways
from tests.pipeline.foreign_faults import more_faults
from tests.pipeline.foreign_fleet import foreign_fleet
from tests.pipeline.foreign_parts import Key, accused_falsely, logs_of


@dataclass
class Case:
    """The differences between the runs and the one run, as texts; empty: nothing."""

    seed: int
    problems: list[str] = field(default_factory=list)


def key(finding: dict[str, Any]) -> Key:
    if finding["kind"] != "gap":
        return finding["kind"], finding["message_id"], 0, 0
    return "gap", "", int(finding["sequence_id"]), int(finding["sequence_number"])


def rows_of(result: AuditResult) -> list[dict[str, Any]]:
    return list(result.findings.astype(object).to_dict("records"))


def about_messages(result: AuditResult) -> Counter[Key]:
    return Counter(key(each) for each in rows_of(result) if each["kind"] not in ABOUT_HOSTS)


def a_fleet(folder: Path, seed: int) -> Counter[Key]:
    """Write the logs of a fleet; return its true findings."""
    if seed % 3 == 0:
        fleet = GeneratedFleet(hosts=5, streams=12, messages=900, days=2, seed=seed,
                               faults=parse_faults("all"))  # fmt: skip
        return Counter(map(key, generate(fleet, folder)["findings"]))
    if seed % 3 == 1:
        return fleet_of_ways(folder, seed).findings
    return foreign_fleet(folder, seed, more=more_faults).findings


def drifting(chance: random.Random, logs: dict[str, Any]) -> dict[str, Any]:
    """Let the clocks of some hosts drift: evenly, or back and forth in the course of a day."""
    first = min(log["at_ms"].to_numpy().min() for log in logs.values())
    drifted = dict(logs)
    for guid in sorted(logs):
        if chance.random() < 0.6:
            continue
        rate = chance.choice([20, 100, 480]) / 1_000_000 * chance.choice([-1, 1])
        swings = chance.random() < 0.3
        at_ms = logs[guid]["at_ms"].to_numpy()
        by = rate * (at_ms - first)
        if swings:  # never faster than `rate`
            day = 86_400_000 / (2 * np.pi)
            by = rate * day * np.sin((at_ms - first) / day)
        moved = pa.array((at_ms + by).astype(np.int64))
        for name in ("at_ms", "time"):
            at = drifted[guid].schema.get_field_index(name)
            kind = drifted[guid].schema.field(at)
            drifted[guid] = drifted[guid].set_column(at, kind, moved.cast(kind.type))
    return drifted


def in_parts(chance: random.Random, logs: dict[str, Any], folder: Path) -> list[list[Path]]:
    """Write each log as a few files, some of which overlap; return the files of each night."""
    nights: list[list[Path]] = [[] for _ in range(chance.randint(2, 5))]
    for number, (guid, log) in enumerate(sorted(logs.items())):
        places = log.select(["block", "index", "at_ms"]).to_pandas()
        log = log.filter(pa.array(~places.duplicated().to_numpy()))  # a fleet has copies of files
        block = log["block"].to_numpy()
        blocks = np.unique(block)
        count = min(chance.randint(1, 6), len(blocks))
        cuts = [0, *sorted(chance.sample(range(1, len(blocks)), count - 1)), len(blocks)]
        for first, last in itertools.pairwise(cuts):
            if chance.random() < 0.2:
                first = max(0, first - chance.randint(0, 5))  # read twice
            some = log.filter(pa.array(np.isin(block, blocks[first:last])))
            path = folder / f"{number}-{guid}-{first}-{last}.parquet"
            parquet.write_table(some, path)
            chance.choice(nights).append(path)
            if chance.random() < 0.1:
                copy = path.with_name(f"copy-{path.name}")
                shutil.copy(path, copy)
                chance.choice(nights).append(copy)
    return nights


def shown(result: AuditResult) -> dict[str, list[str]]:
    """Return what a run says, in any order."""
    # A message that is stored twice has no first place, until both events were read.
    names = ["kind", "from_host", "message_id", "sequence_id", "sequence_number", "until_number"]
    found = result.findings.copy()
    # Of a message that died after it was settled, its number in the stream is not kept.
    found.loc[found.kind == "delivered_and_dead", ["sequence_id", "sequence_number"]] = None
    about = found[found.kind.isin(ABOUT_HOSTS)]
    streams = result.streams
    return {
        "findings": sorted(map(str, found[names].astype(object).values.tolist())),
        # The repetitions that a night does not see make its bounds of clocks a little narrower.
        "hosts": sorted(
            f"{row.kind} {row.host} {row.detail if row.kind != 'clock' else ''}"
            for row in about.itertuples()
        ),
        "open": sorted(
            f"{row.reason} {row.host} {row.messages}" for row in result.open.itertuples()
        ),
        "streams": sorted(
            f"{row.source} {row.stream} {row.sent} {row.accepted}" for row in streams.itertuples()
        ),
    }


def check(seed: int, folder: Path) -> Case:
    """Run a case in `folder`."""
    case, chance = Case(seed), random.Random(seed)
    true = a_fleet(folder / "fleet", seed)
    logs = logs_of(folder / "fleet")
    if seed % 2:
        logs = drifting(random.Random(seed), logs)
    parts = folder / "parts"
    parts.mkdir()
    nights = in_parts(chance, logs, parts)
    settings = AuditSettings(tasks=2, timelines=3, full=chance.random() < 0.1)
    with LocalEngine(threads=1) as engine:
        whole = audit(engine, find_files([str(parts)]), State(), settings)
        draft = Results(folder / "whole").begin("audit")
        write_audit(draft, whole, State())
        here: list[Path] = []
        last = whole
        for night in nights:
            here += night
            if not here:
                continue
            for last in _runs(engine, chance, here, folder / "out", settings):
                false = accused_falsely(about_messages(last), true)
                if false:
                    case.problems.append(f"accused falsely: {false[:5]}")
                case.problems += _undrawn(folder / "out")
    case.problems += _undrawn(folder / "whole")
    if false := accused_falsely(about_messages(whole), true):
        case.problems.append(f"the one run accused falsely: {false[:5]}")
    for name, rows in shown(whole).items():
        others = shown(last)[name]
        if rows != others:
            more, less = Counter(others) - Counter(rows), Counter(rows) - Counter(others)
            case.problems.append(f"{name}: more {[*more][:4]}, less {[*less][:4]}")
    return case


def _undrawn(out: Path) -> list[str]:
    """Return a problem if the last run that published has no page with all of its pictures."""
    page = out / "report.html"
    if page.exists() and "could not be drawn" in page.read_text():
        return [f"no page: {page.read_text()[-300:]}"]
    return []


def _runs(
    engine: Any, chance: random.Random, here: list[Path], out: Path, settings: AuditSettings
) -> Iterator[AuditResult]:
    """Yield the result of a night's run; sometimes one dies first, or another has nothing new."""
    files = [file for file in find_files([str(here[0].parent)]) if Path(file.path) in set(here)]
    for dies in (True,) * (chance.random() < 0.3) + (False,) * chance.choice([1, 1, 1, 2]):
        draft = Results(out).begin("audit")
        state = State.load(draft)
        result = audit(engine, state.unseen(files), state, settings, earlier=state.seen(files))
        if dies:
            draft.discard()
        else:
            write_audit(draft, result, state)
        yield result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.first, asked.first + asked.cases):
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = check(seed, Path(folder))
            except Exception as error:  # of any kind: it is reported with its case
                case = Case(seed, [repr(error)])
        failed += bool(case.problems)
        for problem in case.problems:
            print(f"case {seed}: {problem}", flush=True)
    print(f"{asked.cases} cases, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
