"""Time of the command line's help.

    python -m benchmarks.bench_cli [--json]

Milliseconds of wall time from the start of the interpreter to its end, for `--help` of every
command; the best of five, because other load can only add to the time.  The promise is 200.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import click

from qmd.cli import main as qmd

ROUNDS = 5
PROMISE_MS = 200.0


def commands(group: click.Command = qmd, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command, as a tuple of words."""
    yield path
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, (*path, name))


def milliseconds(words: tuple[str, ...]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "qmd", *words, "--help"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        best = min(best, time.perf_counter() - started)
    return best * 1000


def measure() -> dict[str, float]:
    """Return milliseconds by command."""
    return {" ".join(("qmd", *words)): milliseconds(words) for words in commands()}


def main() -> None:
    figures = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: round(value, 1) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:6.0f} ms")
    slowest = max(figures, key=lambda name: figures[name])
    kept = "kept" if figures[slowest] < PROMISE_MS else "broken"
    print(f"slowest: {slowest}, {figures[slowest]:.0f} ms; promised: {PROMISE_MS:.0f} ms, {kept}")


if __name__ == "__main__":
    main()
