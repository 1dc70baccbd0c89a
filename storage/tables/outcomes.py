"""The results of clients' requests, written in the same commit.

A client that lost the connection before the response repeats the request with the same token, and
gets the same result instead of having its messages sent twice.

    a commit with events       its block of events carries the outcomes: one row for both
    any other commit           table `outcome`, which has an index of the tokens
    a block that is deleted    its outcomes move to table `outcome` while they are kept

Tokens are random: in an index each of them touches a page of its own, and a commit would write that
page as a whole.  So the commit of the last block of a group (event_index.py) enters the digests of
the tokens of all its blocks in one row of `outcome_index`.  A search finds the group by the digest.
A set of all digests in memory, made by the first search, answers for most unknown tokens.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from storage.digest_set import DIGEST_BYTES, DigestSet
from storage.tables.event_index import GROUP_BLOCKS, last_of_groups
from storage.vault import VaultConnection


class OutcomeRow(NamedTuple):
    token: bytes
    result: bytes
    at_s: int


#: Token, result, time in s.
NewOutcome = OutcomeRow | tuple[bytes, bytes, int]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes, int]])


def record(db: sqlite3.Connection, rows: Iterable[NewOutcome]) -> None:
    """Record results in the table; a repeated token gets the later result."""
    db.executemany("INSERT OR REPLACE INTO outcome (token, result, at_s) VALUES (?, ?, ?)", rows)


def carry(db: sqlite3.Connection, rows: Sequence[NewOutcome]) -> bytes | None:
    """Return the column `outcomes` of a block of events that carries these results."""
    if not rows:
        return None
    if (known := _known(db)) is not None:
        known.add(b"".join([_digest(row[0]) for row in rows]))
    return _encoder.encode(rows)


def carried(column: bytes) -> list[OutcomeRow]:
    """Return the results in a column `outcomes`.  Raises msgspec.MsgspecError."""
    return list(map(OutcomeRow._make, _decoder.decode(column)))


def finish_group(db: sqlite3.Connection, last: int) -> None:
    """Enter the digests of the group that ends with block `last`, in the commit of that block."""
    rows = list(_of_blocks(db, last - GROUP_BLOCKS, last))
    if rows:
        db.execute(
            "INSERT OR REPLACE INTO outcome_index (last_block, at_s, tokens) VALUES (?, ?, ?)",
            (last, max(row.at_s for row in rows), b"".join(_digest(row.token) for row in rows)),
        )


def find(db: sqlite3.Connection, token: bytes, shared: bytes = b"") -> bytes | None:
    """Return the result that was recorded for the token, on the writer's connection.

    `shared` is the token under which a version without rights may have recorded it.
    """
    found = _latest(_in_table(db, token), _in_blocks(db, token))
    if found is None and shared and _in_blocks(db, shared) is None:
        found = _in_table(db, shared, "AND shared")
    return None if found is None else found.result


def list_all(db: sqlite3.Connection) -> list[OutcomeRow]:
    """Return all outcomes, the oldest first; of a repeated token only the latest."""
    rows = db.execute("SELECT token, result, at_s FROM outcome ORDER BY id")
    end = last_of_groups(db)
    groups = db.execute("SELECT last_block FROM outcome_index ORDER BY last_block").fetchall()
    found: dict[bytes, OutcomeRow] = {}
    for row in chain(
        map(OutcomeRow._make, rows),
        *(_of_blocks(db, last - GROUP_BLOCKS, last) for (last,) in groups),
        _of_blocks(db, end, end + GROUP_BLOCKS),
    ):
        before = found.pop(row.token, row)
        found[row.token] = row if row.at_s >= before.at_s else before
    return sorted(found.values(), key=lambda row: row.at_s)


def forget(db: sqlite3.Connection, before_s: int, rows_max: int) -> int:
    """Delete outcomes recorded before `before_s`, the oldest first; return how many.

    At most `rows_max` rows are deleted, of either table; a smaller number means that no more have
    to be deleted.  Outcomes that a database may still need are kept: see `storage.tables.branches`.
    """
    count = db.execute(
        "DELETE FROM outcome WHERE at_s < ? AND id IN (SELECT id FROM outcome"
        " WHERE token NOT IN (SELECT transaction_id FROM branch) ORDER BY id LIMIT ?)",
        (before_s, rows_max),
    ).rowcount
    return max(count, _forget_groups(db, before_s, rows_max))


def keep_those_of(db: sqlite3.Connection, block: int, column: bytes | None) -> None:
    """Move the outcomes of a block that is deleted to the table, unless they were forgotten."""
    if column is None:
        return
    group = -(-block // GROUP_BLOCKS) * GROUP_BLOCKS
    is_kept = (
        block > last_of_groups(db)
        or db.execute("SELECT 1 FROM outcome_index WHERE last_block = ?", (group,)).fetchone()
    )
    if is_kept:
        _keep(db, carried(column))


def _forget_groups(db: sqlite3.Connection, before_s: int, rows_max: int) -> int:
    oldest = "SELECT last_block, at_s FROM outcome_index ORDER BY last_block LIMIT ?"
    going = []
    for last, at_s in db.execute(oldest, (rows_max,)):
        if at_s >= before_s:
            break
        going.append(last)
    if not going:
        return 0
    branches = db.execute("SELECT DISTINCT transaction_id FROM branch").fetchall()
    _keep(db, [row for (token,) in branches if (row := _in_blocks(db, token)) is not None])
    db.execute("DELETE FROM outcome_index WHERE last_block <= ?", (going[-1],))
    if isinstance(db, VaultConnection):
        db.digests = None  # the next search makes it anew, without these
    return len(going)


def _keep(db: sqlite3.Connection, rows: Sequence[OutcomeRow]) -> None:
    db.executemany(
        "INSERT INTO outcome (token, result, at_s) VALUES (?, ?, ?) ON CONFLICT (token) DO UPDATE"
        " SET result = excluded.result, at_s = excluded.at_s WHERE excluded.at_s >= outcome.at_s",
        rows,
    )


def _in_table(db: sqlite3.Connection, token: bytes, which: str = "") -> OutcomeRow | None:
    query = f"SELECT token, result, at_s FROM outcome WHERE token = ? {which}"
    row = db.execute(query, (token,)).fetchone()
    return None if row is None else OutcomeRow._make(row)


def _in_blocks(db: sqlite3.Connection, token: bytes) -> OutcomeRow | None:
    """Return the latest result of a token that a block carries."""
    digest = _digest(token)
    if digest not in _all_digests(db):
        return None
    end = last_of_groups(db)
    if found := _last_of(db, end, end + GROUP_BLOCKS, token):
        return found
    groups = db.execute(
        "SELECT last_block FROM outcome_index WHERE instr(tokens, ?) ORDER BY last_block DESC",
        (digest,),
    )
    for (last,) in groups:
        if found := _last_of(db, last - GROUP_BLOCKS, last, token):
            return found
    return None


def _last_of(db: sqlite3.Connection, after: int, last: int, token: bytes) -> OutcomeRow | None:
    found = None
    for row in _of_blocks(db, after, last):
        if row.token == token:
            found = row
    return found


def _of_blocks(db: sqlite3.Connection, after: int, last: int) -> Iterator[OutcomeRow]:
    """Yield the outcomes that the blocks above `after` up to `last` carry, in order."""
    columns = db.execute(
        "SELECT outcomes FROM event_block WHERE id > ? AND id <= ? AND outcomes IS NOT NULL"
        " ORDER BY id",
        (after, last),
    )
    for (column,) in columns:
        yield from carried(column)


def _latest(*found: OutcomeRow | None) -> OutcomeRow | None:
    return max((row for row in found if row), key=lambda row: row.at_s, default=None)


def _digest(token: bytes) -> bytes:
    return hashlib.blake2b(token, digest_size=DIGEST_BYTES).digest()


def _known(db: sqlite3.Connection) -> DigestSet | None:
    return db.digests if isinstance(db, VaultConnection) else None


def _all_digests(db: sqlite3.Connection) -> DigestSet:
    """Return the digests of all tokens in blocks; a rolled back commit may leave some behind."""
    if (known := _known(db)) is not None:
        return known
    known = DigestSet()
    for (tokens,) in db.execute("SELECT tokens FROM outcome_index"):
        known.add(tokens)
    end = last_of_groups(db)
    for row in _of_blocks(db, end, end + GROUP_BLOCKS):
        known.add(_digest(row.token))
    if isinstance(db, VaultConnection):
        db.digests = known
    return known
