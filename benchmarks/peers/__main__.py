"""qmd, RabbitMQ, NATS and Redis under the same load, by turns.

    python -m benchmarks.peers [--rounds N] [--only NAME ...] [--tree FOLDER] [--first] [--write]

W1: an application sends messages of 1 KiB to A, which forwards them to B, where another receives
them, with 1,000 unconfirmed messages; then 200 messages a second.  W2: a queue of one server, with
messages sent one by one or in batches of 100, each confirmed before the next.

The servers are those of Debian's packages rabbitmq-server, nats-server and redis-server, or those
installed in another Debian tree: `debootstrap --variant=minbase --include=rabbitmq-server,...`
makes one, and `--tree` (as root) names it.  They run in temporary folders.  Each round measures
every peer with fresh servers, each second round in the opposite order.  A missing one is left out
and named.  With `--first` (as root) all of them go before other sessions of a busy machine, which
takes their noise out of processor time and latency, but not out of the disk.  `--write` puts the
tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.bench_end_to_end import fdatasync_ms
from benchmarks.peers import measure, report, servers
from benchmarks.peers.processes import CannotStart

AUTOGROUP = Path("/proc/self/autogroup")  # sched(7): the priority of a session
FIRST = "-15"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- peers: written by `make bench` -->", "<!-- peers: end -->"


def missing(names: list[str], tree: Path | None) -> dict[str, str]:
    """Return why peers cannot be measured, by name."""
    found = {name: servers.PEERS[name].missing(tree) for name in names}
    return {name: why for name, why in found.items() if why}


def one_round(
    names: list[str], sizes: measure.Sizes, tree: Path | None, skipped: dict[str, str]
) -> report.Round:
    """Measure every peer once; name in `skipped` what fails."""
    found: report.Round = {}
    for name in names:
        peer = servers.PEERS[name]
        found[name] = {}
        slow = name == servers.NATS_SYNC  # it syncs each message alone
        some = (
            replace(sizes, window=sizes.window // 8, batches=sizes.batches // 8) if slow else sizes
        )
        for is_wanted, turn in (
            (name in servers.LINKS, measure.link),
            (name in servers.LOCALS, measure.local),
        ):
            if is_wanted and name not in skipped:
                print(f"... {name}, {turn.__name__}", file=sys.stderr, flush=True)
                try:
                    found[name] |= turn(peer, some, tree)
                except (measure.CannotMeasure, CannotStart) as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    skipped[name] = str(error).splitlines()[0]
    return {name: each for name, each in found.items() if each}


def machine(loads: list[float], syncs: list[float]) -> str:
    """Return a sentence about the machine during the rounds."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30
    return (
        f"{os.cpu_count()} processors ({_processor()}), {memory:.0f} GiB of memory, Python"
        f" {platform.python_version()}; before the rounds a load average of {_span(loads)}, and"
        f" an fdatasync of 8 KiB took {_span(syncs)} ms at the median."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _span(values: list[float]) -> str:
    return f"{min(values):g}" if len(set(values)) == 1 else f"{min(values):g} to {max(values):g}"


def write(section: str, file: Path = DOCS) -> None:
    """Put the section between its marks."""
    before, _, rest = file.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{file} has no section of peers")
    file.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")


def run(arguments: list[str]) -> str:
    """Measure, print the tables, and return the section of the documentation."""
    given = _parser().parse_args(arguments)
    names = given.only or list(servers.PEERS)
    sizes = measure.Sizes()
    if given.scale != 1:
        sizes = measure.Sizes(*(int(each * given.scale) for each in vars(sizes).values()))
    if given.first:
        AUTOGROUP.write_text(FIRST)
    skipped = missing(names, given.tree)
    versions = {
        program: servers.version(program, given.tree)
        for name in names
        if name not in skipped and (program := servers.PEERS[name].program)
    }
    rounds: list[report.Round] = []
    loads, syncs = [], []
    for number in range(given.rounds):
        loads.append(round(os.getloadavg()[0], 1))
        syncs.append(fdatasync_ms()[0])
        present = [name for name in names if name not in skipped]
        order = present if number % 2 == 0 else present[::-1]
        rounds.append(one_round(order, sizes, given.tree, skipped))
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(rounds[-1]) + "\n")
    tables = [*report.medians(rounds), ("ratios", report.ratios(rounds))]
    print("\n\n".join(report.text(table) for _, table in tables))
    today = datetime.datetime.now(datetime.UTC).date()
    about = [
        f"{today}, {len(rounds)} rounds by turns, medians with the least and the most."
        f" {machine(loads, syncs)}"
        + (" The run had priority over other processes (`--first`)." if given.first else ""),
        f"Servers: qmd of this commit, {', '.join(versions.values())}.",
    ]
    about += [f"{name} was left out: {why}." for name, why in skipped.items()]
    print("\n" + "\n".join(about))
    return "\n\n".join([*about, *(report.markdown(table) for _, table in tables)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=tuple(servers.PEERS), metavar="NAME")
    parser.add_argument("--tree", type=Path, help="a Debian tree with the servers")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of messages")
    parser.add_argument("--first", action="store_true", help="go before other sessions")
    parser.add_argument("--json", type=Path, help="a file to add the figures of each round to")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser


def main(arguments: list[str]) -> None:
    # So that a SIGTERM stops the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    section = run(arguments)
    if "--write" in arguments:
        write(section)


if __name__ == "__main__":
    main(sys.argv[1:])
