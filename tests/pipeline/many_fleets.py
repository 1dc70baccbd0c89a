"""Thousands of small fleets, each in any parts over some nights, many of them in one audit.

`python -m tests.pipeline.many_fleets --cases 5000 --first 0` runs many cases, and prints those that
fail.  A case is a number; the same number is the same fleet in the same files.  The time of a small
audit does not depend on its events, so one audit reads the logs of some dozens of fleets that do
not know each other.  `--together 1` runs each case alone: some defects show only there, or only
beside others.

No night may accuse falsely, and the last one must say what one run over all files says.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_copies import Copies
from tests.pipeline.foreign_faults import HAPPENINGS
from tests.pipeline.foreign_fleet import (
    DAY,
    HOUR,
    MIDNIGHT,
    MINUTE,
    Fleet,
    Message,
    Stream,
    several_in_one_stream,
)
from tests.pipeline.foreign_parts import Key, accused_falsely, logs_of
from tests.pipeline.foreign_snapshots import Snapshot
from tests.pipeline.foreign_way_faults import FAULTS, acknowledge_unstored
from tests.pipeline.foreign_ways import EVERY_DAY, Way
from tests.pipeline.nights import drifting, key, rows_of, shown

NIGHTS = 4
_NAMED = ("host", "queue", "to_queue")
_NEVER = NIGHTS  # the night of files that do not come


@dataclass
class Case:
    """A fleet: its logs, and its true findings."""

    seed: int
    logs: list[Any]
    true: Counter[Key]
    guids: set[str] = field(default_factory=set)
    whole: int = 1 << 30  # the first of the logs that come whole, or never


def of_ways(seed: int) -> Fleet:
    """Return hosts with some ways between them, on which faults and everyday events meet."""
    f = Fleet(random.Random(seed))
    chance = f.chance
    names = ("alpha", "bravo", "golf", "lima")[: chance.randint(2, 4)]
    hosts = [f.host(name) for name in names]
    if chance.random() < 0.2:
        hosts[-1].ahead_ms = chance.choice([-1, 1]) * chance.choice([7000, 40 * MINUTE, 6 * HOUR])
    for source, to in itertools.permutations(hosts, 2):
        if chance.random() < 0.5:
            stream = Stream(source) if chance.random() < 0.8 else None
            for n in range(chance.randint(2, 6)):
                at = MIDNIGHT + HOUR + n * 400 * MINUTE + chance.random() * MINUTE
                f.life(Message(source, to, "usual" if stream else "plain", stream), at)
    for n in range(chance.randint(1, 3)):
        begin = chance.choice([2 * HOUR, 9 * HOUR, DAY - 5 * MINUTE, DAY - 3000, DAY + 8 * HOUR])
        pace = chance.choice([30, 2000, MINUTE, 10 * MINUTE])
        way = Way(f, *chance.sample(hosts, 2), f"way{n}", MIDNIGHT + begin, pace)
        for _ in range(chance.randint(3, 10)):
            if way.at < MIDNIGHT + 2 * DAY - 8 * HOUR:
                chance.choice(FAULTS if chance.random() < 0.5 else EVERY_DAY)(way)
        way.deliver()
        if chance.random() < 0.4:
            acknowledge_unstored(way)
    return f


def of_scenarios(seed: int) -> Fleet:
    """Return hosts between which one or two of the fixed scenarios happen."""
    f = Fleet(random.Random(seed))
    hosts = [f.host(name) for name in ("quebec", "romeo", "sierra")]
    if f.chance.random() < 0.3:
        several_in_one_stream(f, hosts[0], hosts[1], MIDNIGHT + 3 * HOUR)
    for n in range(f.chance.randint(1, 2)):
        source, to = f.chance.sample(hosts, 2)
        begin = f.chance.choice([2 * HOUR, DAY - 7 * MINUTE])
        f.chance.choice(HAPPENINGS)(f, source, to, MIDNIGHT + begin + n * 3 * HOUR)
    for source, to in itertools.permutations(hosts, 2):
        f.life(Message(source, to, "usual", Stream(source)), MIDNIGHT + 2 * DAY - HOUR)
    return f


def case_of(seed: int, folder: Path) -> Case:
    """Return the fleet of a case, with names that no other one has."""
    chance = random.Random(seed)
    kind = seed % 10
    if kind == 0:
        folder.mkdir(parents=True)
        faults = "all" if chance.random() < 0.7 else "everyday"
        generated = GeneratedFleet(hosts=3, streams=5, messages=chance.randint(40, 150), days=2,
                                   seed=seed, faults=parse_faults(faults))  # fmt: skip
        true = Counter(map(key, generate(generated, folder)["findings"]))
        logs = list(logs_of(folder).values())
    else:
        fleet: Any = (Copies if kind in (1, 2) else Snapshot if kind in (3, 4) else
                      of_scenarios if kind in (5, 6) else of_ways)(seed)  # fmt: skip
        if isinstance(fleet, Snapshot) and fleet.looks_like_a_crash:
            fleet = of_ways(seed)
        f = getattr(fleet, "f", fleet)
        hosts = (
            [fleet.alpha, fleet.quebec, fleet.romeo, fleet.original, fleet.copy]
            if isinstance(fleet, Copies)
            else fleet.logged()
            if isinstance(fleet, Snapshot)
            else list(f.hosts.values())
        )
        true = f.findings
        tables = [pa.Table.from_pylist(host.rows(), schema=arrow_schema()) for host in hosts]
        logs = [table for table in tables if len(table)]
        if kind in (7, 9) and chance.random() < 0.5:
            logs = list(drifting(chance, dict(enumerate(logs))).values())  # type: ignore[arg-type]
    case = Case(seed, [_renamed(log, seed) for log in logs], true)
    if kind in (1, 2):
        case.whole = 3  # nothing keeps the parts of the logs of two copies apart
    case.guids = {each for log in logs for each in pc.unique(log["queue_manager"]).to_pylist()}
    return case


def _renamed(log: Any, seed: int) -> Any:
    """Give each host a name of its own, also in the names of queues."""
    for name in _NAMED:
        at, texts = log.schema.get_field_index(name), log[name].to_pylist()
        if name == "host":
            changed = [f"{text}-c{seed}" for text in texts]
        else:
            changed = [re.sub(r"(OS:[^\\]+)", rf"\1-c{seed}", text or "") for text in texts]
        log = log.set_column(at, log.schema.field(at), pa.array(changed, log.schema.field(at).type))
    return log


def in_parts(case: Case, folder: Path) -> list[list[Path]]:
    """Write each log as a few files, some of which overlap; return the files of each night."""
    chance = random.Random(f"parts {case.seed}")
    nights: list[list[Path]] = [[] for _ in range(NIGHTS + 1)]
    never = chance.choice([0, 0, 0.15, 0.4])
    for number, log in enumerate(case.logs):
        block = log["block"].to_numpy()
        blocks = np.unique(block)
        count = 1 if number >= case.whole else min(chance.choice([1, 1, 2, 3, 5]), len(blocks))
        cuts = [0, *sorted(chance.sample(range(1, len(blocks)), count - 1)), len(blocks)]
        for first, last in itertools.pairwise(cuts):
            if chance.random() < 0.2:
                first = max(0, first - chance.randint(0, 5))  # read twice
            some = log.filter(pa.array(np.isin(block, blocks[first:last])))
            path = folder / f"{case.seed}-{number}-{first}-{last}.parquet"
            parquet.write_table(some, path)
            comes = _NEVER if chance.random() < never else chance.randrange(NIGHTS)
            nights[comes].append(path)
            if chance.random() < 0.1 and comes != _NEVER:
                again = path.with_name(f"copy-{path.name}")
                shutil.copy(path, again)
                nights[chance.randrange(NIGHTS)].append(again)
    for path in nights[_NEVER]:
        path.unlink()
    return nights[:NIGHTS]


def check(
    engine: Any, seeds: list[int], folder: Path, *, pages: bool = False
) -> dict[int, list[str]]:
    """Run these cases in one audit for each night; return the problems of each."""
    chance = random.Random(f"together {seeds}")
    cases = [case_of(seed, folder / f"fleet-{seed}") for seed in seeds]
    (parts := folder / "parts").mkdir()
    nights: list[list[Path]] = [[] for _ in range(NIGHTS)]
    for case in cases:
        for files, more in zip(nights, in_parts(case, parts), strict=True):
            files += more
    settings = AuditSettings(
        tasks=1, timelines=3 if pages else 0, full=chance.random() < 0.1, findings_max=10**6
    )
    problems: dict[int, list[str]] = {}
    whole = audit(engine, find_files([str(parts)]), State(), settings)
    _accuse(cases, whole, "the one run", problems)
    if pages:
        write_audit(Results(folder / "whole").begin("audit"), whole, State())
    here: set[Path] = set()
    state, last = State(), whole
    for number, night in enumerate(nights):
        here |= set(night)
        files = [file for file in find_files([str(parts)]) if Path(file.path) in here]
        if not files:
            continue
        for dies in (True,) * (chance.random() < 0.2) + (False,) * chance.choice([1, 1, 1, 2]):
            if pages:
                draft = Results(folder / "out").begin("audit")
                state = State.load(draft)
            before = copy.deepcopy(state) if dies and not pages else state
            last = audit(engine, state.unseen(files), state, settings, earlier=state.seen(files))
            if pages:
                draft.discard() if dies else write_audit(draft, last, state)
            elif dies:
                state = before
            _accuse(cases, last, f"night {number}", problems)
    _compare(cases, whole, last, problems, streams=pages)
    return problems


def _accuse(
    cases: list[Case], result: AuditResult, when: str, problems: dict[int, list[str]]
) -> None:
    by_case: dict[int, Counter[Key]] = {}
    owner = _owners(cases)
    for finding in rows_of(result):
        if finding["kind"] not in ABOUT_HOSTS:
            seed = _seed_of(" ".join(map(str, finding.values())), owner)
            by_case.setdefault(seed, Counter())[key(finding)] += 1
    true = {case.seed: case.true for case in cases}
    for seed, some in by_case.items():
        if false := accused_falsely(some, true.get(seed, Counter())):
            problems.setdefault(seed, []).append(f"{when} accused falsely: {false[:4]}")


def _owners(cases: list[Case]) -> dict[str, int]:
    return {guid: case.seed for case in cases for guid in case.guids}


_GUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _seed_of(text: str, owner: dict[str, int]) -> int:
    """Return the case that a text names, by a name of a host or a GUID; -1: none."""
    if named := re.search(r"-c(\d+)\b", text):
        return int(named[1])
    return next((owner[each] for each in _GUID.findall(text) if each in owner), -1)


def _compare(
    cases: list[Case],
    whole: AuditResult,
    last: AuditResult,
    problems: dict[int, list[str]],
    *,
    streams: bool,
) -> None:
    owner, one, other = _owners(cases), shown(whole), shown(last)
    for name, rows in one.items():
        if name == "streams" and not streams:
            continue  # their sums are added up when a run publishes
        there = Counter(rows)
        for sign, some in (("more", Counter(other[name]) - there),
                           ("less", there - Counter(other[name]))):  # fmt: skip
            for text in some:
                seed = _seed_of(text, owner)
                problems.setdefault(seed, []).append(f"{name}: {sign} {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--together", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--until", type=int, default=1 << 62, help="end after so many failures")
    asked = parser.parse_args()
    failed, done, begun = 0, 0, time.monotonic()
    with LocalEngine(threads=1) as engine:
        for number, first in enumerate(range(0, asked.cases, asked.together)):
            seeds = [
                asked.first + n for n in range(first, min(first + asked.together, asked.cases))
            ]
            if time.monotonic() - begun > asked.seconds or failed >= asked.until:
                break
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = check(engine, seeds, Path(folder), pages=number % 10 == 9)
                except Exception:  # of any kind: it is reported with its cases
                    found = {-1: [f"{seeds}: {traceback.format_exc()}"]}
            done += len(seeds)
            failed += len(found)
            for seed, problems in found.items():
                for problem in problems[:6]:
                    print(f"case {seed} (of {seeds[0]} to {seeds[-1]}): {problem}", flush=True)
    seconds = time.monotonic() - begun
    print(f"{done} cases, {failed} failed, {done / seconds:.1f} a second,"
          f" {done / time.process_time():.1f} a second of processor time")  # fmt: skip
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
