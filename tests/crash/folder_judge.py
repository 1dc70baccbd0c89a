"""The judge of `qmd check` and `--repair`: whether their statements on a data folder are true."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from storage.engine import page_size
from storage.rescue import check
from storage.rescue.cells import LEAF_TABLE, Unreadable, read_page
from storage.rescue.database_file import DatabaseFile
from storage.rescue.repair import Rescue
from storage.rescue.survey import MESSAGE_TABLES, Survey
from storage.rescue.write_ahead_log import read_index, read_log
from tests.crash.wounds import DATABASE, LOG, WOUNDS
from tests.stored_packets import packets

FILES = (DATABASE, LOG, f"{DATABASE}-shm")
NEW_ID = b"new-queue-manager"[:16]
FRAME_HEADER_BYTES, LOG_HEADER_BYTES = 24, 32

Key = tuple[str, int]  # table, key
Pages = dict[Key, set[int]]


class Truth(NamedTuple):
    """The contents of a folder, as SQLite reads them from a copy."""

    packets: dict[Key, bytes]
    counts: dict[str, int]  # by queue or destination, as `check` counts


class Tally(NamedTuple):
    """The result for one damaged folder."""

    certain: int
    doubted: int
    set_aside_unharmed: int  # in doubt, although their pages are intact
    returned: int  # by a page in an older state, which cannot be detected


def copy(folder: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for name in FILES:
        if (folder / name).exists():
            shutil.copyfile(folder / name, to / name)
    return to


def read_truth(folder: Path, scratch: Path) -> Truth | None:
    """Return the contents of a folder; None before its first start was complete.

    Raises AssertionError where SQLite finds an error.
    """
    copied = copy(folder, scratch)
    try:
        with closing(sqlite3.connect(copied / DATABASE)) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return None
            found = db.execute("PRAGMA integrity_check").fetchall()
            assert found == [("ok",)], f"SQLite finds: {found}"
            names = {
                "message": dict(db.execute("SELECT id, name FROM queue")),
                "outgoing": dict(db.execute("SELECT id, destination FROM outgoing_queue")),
            }
            counts: Counter[str] = Counter()
            found_packets: dict[Key, bytes] = {}
            for table in ("message", "outgoing"):
                for key, packet in packets(db, table):
                    found_packets[table, key] = packet
                    counts[names[table][key >> 48]] += 1
            of_numbers = dict(db.execute("SELECT number, queue_id FROM awaiting"))
            for number, packet in packets(db, "awaiting", "number"):
                found_packets["awaiting", number] = packet
                counts[names["outgoing"][of_numbers[number]]] += 1
            return Truth(found_packets, dict(counts))
    finally:
        shutil.rmtree(copied)


def judge_sound(folder: Path, truth: Truth) -> list[str]:
    """Return the errors in the verdict on an intact folder."""
    before = {name: (folder / name).read_bytes() for name in FILES[:2] if (folder / name).exists()}
    report = check.check(folder)
    wrong = [f"a sound folder has a finding: {each}" for each in report.findings[:5]]
    if report.messages != dict(sorted(truth.counts.items())):
        wrong.append(f"the counts are {report.messages}, and should be {truth.counts}")
    if any((folder / name).read_bytes() != content for name, content in before.items()):
        wrong.append("the folder was changed")
    return wrong


def judge_wounded(
    folder: Path,
    earlier: Path,
    truth: Truth,
    scratch: Path,
    rng: random.Random,
    tallies: list[Tally],
) -> tuple[str, list[str]]:
    """Damage a copy; return the damage, and the errors in its check and repair."""
    pages = _pages_of_rows(folder)
    wounded = copy(folder, scratch / "wounded")
    if rng.random() < 0.3:
        (wounded / FILES[2]).unlink(missing_ok=True)
    name = rng.choice(WOUNDS)(wounded, rng, earlier)
    harmed, is_end_harmed = _harmed_pages(folder, wounded)
    try:
        return name, _judge(
            folder, wounded, truth, pages, harmed, is_end_harmed, "page" in name, tallies
        )
    finally:
        shutil.rmtree(scratch / "wounded")
        shutil.rmtree(scratch / "wounded.repaired", ignore_errors=True)


def _judge(
    sound: Path,
    wounded: Path,
    truth: Truth,
    pages: Pages,
    harmed: set[int],
    is_end_harmed: bool,
    is_former: bool,
    tallies: list[Tally],
) -> list[str]:
    # A commit that its process could not record there was not acknowledged.
    has_index = read_index(wounded / FILES[2]).frames >= _last_commit(sound)[1]
    report = check.check(wounded)
    rescue = Rescue(wounded)
    certain: dict[Key, bytes] = {}
    others: dict[Key, set[bytes]] = {}
    wrong: list[str] = []
    for message in rescue.run(now_s=1, new_id=NEW_ID):
        key = message.table, message.key
        if message.problem is not None:
            others.setdefault(key, set()).add(message.packet)
        elif certain.setdefault(key, message.packet) is not message.packet:
            wrong.append(f"{key} is certain twice")
    if sum(report.messages.values()) != len(certain):
        wrong.append(f"{report.messages} were counted, and {len(certain)} are certain")
    is_older = is_end_harmed and not any(_is_said(wounded))
    returned = [key for key, packet in certain.items() if truth.packets.get(key) != packet]
    on_harmed = {key for key in returned if is_former}
    if returned and not is_end_harmed and not is_former:
        wrong.append(f"{len(returned)} are certain that are not there, such as {returned[0]}")
    if is_older and has_index:
        wrong.append("the end of the log is lost, its index knows it, and nothing was said")
    unharmed = {key for key in truth.packets if key in pages and not pages[key] & harmed}
    if not is_end_harmed:
        lost = [
            key
            for key in unharmed
            if certain.get(key) != truth.packets[key]
            and truth.packets[key] not in others.get(key, ())
        ]
        if lost:
            wrong.append(f"{len(lost)} of unharmed pages are lost, such as {lost[0]}")
    report = check.check(rescue.fresh)
    wrong += [f"what was saved has a finding: {each}" for each in report.findings[:3]]
    if sum(report.messages.values()) != len(certain) or rescue.saved != len(certain):
        wrong.append(f"{rescue.saved} of {len(certain)} were saved")
    tallies.append(
        Tally(len(certain), rescue.doubted, len(unharmed - certain.keys()), len(on_harmed))
    )
    return wrong


def _is_said(wounded: Path) -> list[str]:
    survey = Survey(wounded / DATABASE)
    survey.close()
    return [each for each in survey.findings if "log" in each]


def _pages_of_rows(folder: Path) -> Pages:
    """Return the pages of each message in an intact folder."""
    found: Pages = {}
    with DatabaseFile(folder / DATABASE) as file, closing(_private_view(folder)) as db:
        roots = {
            root: name
            for name, root in db.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage")
        }
        parts = {
            (table, key): part
            for table, column in (("message", "key"), ("outgoing", "key"), ("awaiting", "number"))
            for key, part in db.execute(
                f"SELECT {column}, part_id FROM {table} WHERE part_id IS NOT NULL"
            )
        }
        follows = dict(db.execute("SELECT id, follows FROM shared_part"))
        free = file.freelist().pages
        for number in range(3, file.page_count + 1):
            kind, above = file.pointer(number)
            if number in free or kind not in (1, 5) or not file.is_content(number):
                continue
            root = number
            while kind == 5:
                root, (kind, above) = above, file.pointer(above)
            table = roots.get(root, "")
            if table not in (*MESSAGE_TABLES, "shared_part"):
                continue
            try:
                page = read_page(file.page(number), number)
            except Unreadable as error:
                raise AssertionError(f"page {number} of a sound folder: {error}") from error
            if page.kind == LEAF_TABLE:
                for cell in page.cells:
                    found[table, cell.rowid] = {number, *_chain(file, cell.overflow)}
    for key, part in parts.items():
        piece: int | None = part
        while piece is not None:
            found[key] |= found["shared_part", piece]
            piece = follows[piece]
    return found


def _private_view(folder: Path) -> sqlite3.Connection:
    """Open the folder in memory, so that reading changes nothing."""
    scratch = folder.with_name(f"{folder.name}.view")
    copied = copy(folder, scratch)
    db = sqlite3.connect(":memory:")
    with closing(sqlite3.connect(copied / DATABASE)) as source:
        source.backup(db)
    shutil.rmtree(scratch)
    return db


def _chain(file: DatabaseFile, number: int) -> list[int]:
    found = []
    while number:
        found.append(number)
        number = int.from_bytes(file.page(number)[:4], "big")
    return found


def _harmed_pages(folder: Path, wounded: Path) -> tuple[set[int], bool]:
    """Return the pages with a changed newest state, and whether the log's last commit is harmed.

    A harmed log as a whole counts as well.
    """
    page_bytes = page_size.of_database(folder / DATABASE)
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    log = read_log(folder / DATABASE, page_bytes)
    harmed = {
        number + 1
        for number in _differences(folder, wounded, DATABASE, 0, page_bytes)
        if number + 1 not in log.frames
    }
    by_frame = {
        (content - FRAME_HEADER_BYTES - LOG_HEADER_BYTES) // frame_bytes: page
        for page, content in log.frames.items()
    }
    frames = _differences(folder, wounded, LOG, LOG_HEADER_BYTES, frame_bytes)
    harmed |= {by_frame[frame] for frame in frames & by_frame.keys()}
    begins, ends = _last_commit(folder)
    # Without the end of the commit before it both are one, which a loss of power may have torn.
    return harmed, any(begins - 1 <= frame < ends for frame in frames)


def _differences(folder: Path, wounded: Path, name: str, first: int, size: int) -> set[int]:
    """Return the indexes of the pieces of that size that differ."""
    before, after = (
        (each / name).read_bytes() if (each / name).exists() else b"" for each in (folder, wounded)
    )
    starts = range(first, len(before), size)
    return {
        number
        for number, start in enumerate(starts)
        if before[start : start + size] != after[start : start + size]
    }


def _last_commit(folder: Path) -> tuple[int, int]:
    """Return the first and the end frame of the last commit, counted from 0."""
    path = folder / LOG
    data = path.read_bytes() if path.exists() else b""
    salts = data[16:24]
    commits = [0]
    page_bytes = page_size.of_database(folder / DATABASE)
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    newest = max(read_log(folder / DATABASE, page_bytes).frames.values(), default=0)
    for frame in range((len(data) - LOG_HEADER_BYTES) // frame_bytes if data else 0):
        header = LOG_HEADER_BYTES + frame * frame_bytes
        if header >= newest or data[header + 8 : header + 16] != salts:
            break
        if data[header + 4 : header + 8] != bytes(4):
            commits.append(frame + 1)
    return (commits[-2], commits[-1]) if len(commits) > 1 else (0, 0)
