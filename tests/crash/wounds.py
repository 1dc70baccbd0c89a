"""Damage to data folders, as disks, mistakes and bad cables cause it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from storage.engine import page_size

SECTOR_BYTES = 512
DATABASE, LOG = "queues.db", "queues.db-wal"


def _content(folder: Path, name: str) -> bytearray:
    path = folder / name
    return bytearray(path.read_bytes() if path.exists() else b"")


def _a_file(folder: Path, rng: random.Random) -> tuple[str, bytearray]:
    for name in rng.sample((DATABASE, LOG), 2):
        content = _content(folder, name)
        if content:
            return name, content
    raise AssertionError("both files are empty")


def flip(folder: Path, rng: random.Random, _: Path) -> str:
    name, content = _a_file(folder, rng)
    count = rng.choice((1, 1, 1, 5, 30))
    for _ in range(count):
        place = rng.randrange(len(content))
        content[place] ^= 1 << rng.randrange(8)
    (folder / name).write_bytes(content)
    return f"{count} flipped bits in {name}"


def flip_where_it_matters(folder: Path, rng: random.Random, _: Path) -> str:
    """Flip bits in page headers, row lists and the pointer map."""
    page_bytes = page_size.of_database(folder / DATABASE)
    content = _content(folder, DATABASE)
    page = rng.randrange(len(content) // page_bytes) if rng.random() < 0.7 else rng.randrange(2)
    place = page * page_bytes + rng.randrange(rng.choice((12, 40, 200)))
    if page == 1:  # the first page of the pointer map
        place = page_bytes + rng.randrange(min(page_bytes, 5 * len(content) // page_bytes))
    place = min(place, len(content) - 1)
    content[place] ^= 1 << rng.randrange(8)
    (folder / DATABASE).write_bytes(content)
    return f"a flipped bit at {place} of {DATABASE}"


def spoil(folder: Path, rng: random.Random, _: Path) -> str:
    """Replace pieces by zeros or random bytes."""
    page_bytes = page_size.of_database(folder / DATABASE)
    name, content = _a_file(folder, rng)
    count = rng.choice((1, 1, 3))
    for _ in range(count):
        size = rng.choice((SECTOR_BYTES, 4096, page_bytes, 3 * page_bytes))
        unit = rng.choice((SECTOR_BYTES, page_bytes))
        place = rng.randrange(max(1, len(content) - size)) // unit * unit
        size = min(size, len(content) - place)
        content[place : place + size] = bytes(size) if rng.random() < 0.6 else rng.randbytes(size)
    (folder / name).write_bytes(content)
    return f"{count} spoiled pieces of {name}"


def cut_database(folder: Path, rng: random.Random, _: Path) -> str:
    content = _content(folder, DATABASE)
    end = rng.randrange(len(content))
    (folder / DATABASE).write_bytes(content[:end])
    return f"{DATABASE} cut at {end}"


def cut_log(folder: Path, rng: random.Random, _: Path) -> str:
    content = _content(folder, LOG)
    end = rng.randrange(len(content)) if content else 0
    (folder / LOG).write_bytes(content[:end])
    return f"{LOG} cut at {end}"


def former_page(folder: Path, rng: random.Random, earlier: Path) -> str:
    """Restore an old state of a page, as after a lost write."""
    page_bytes = page_size.of_database(folder / DATABASE)
    content, before = _content(folder, DATABASE), _content(earlier, DATABASE)
    pages = min(len(content), len(before)) // page_bytes
    changed = [
        page
        for page in range(pages)
        if content[page * page_bytes :][:page_bytes] != before[page * page_bytes :][:page_bytes]
    ]
    if not changed:
        return "nothing"
    place = rng.choice(changed) * page_bytes
    content[place : place + page_bytes] = before[place : place + page_bytes]
    (folder / DATABASE).write_bytes(content)
    return f"page {place // page_bytes + 1} as it was before"


def misplaced_page(folder: Path, rng: random.Random, _: Path) -> str:
    """Write a page to the place of another one."""
    page_bytes = page_size.of_database(folder / DATABASE)
    content = _content(folder, DATABASE)
    pages = len(content) // page_bytes
    source, place = (rng.randrange(pages) * page_bytes for _ in range(2))
    content[place : place + page_bytes] = content[source : source + page_bytes]
    (folder / DATABASE).write_bytes(content)
    return f"page {source // page_bytes + 1} in the place of {place // page_bytes + 1}"


WOUNDS: tuple[Callable[[Path, random.Random, Path], str], ...] = (
    flip,
    flip,
    flip_where_it_matters,
    spoil,
    spoil,
    cut_database,
    cut_log,
    former_page,
    misplaced_page,
)
