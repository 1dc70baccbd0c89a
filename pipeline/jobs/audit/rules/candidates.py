"""Candidates: possible findings, each with the parts of logs that must be read to prove it."""

from __future__ import annotations

# A candidate: its `kind`, its message, and which parts of logs must have been read to prove it:
# every stretch that could contain an event that explains it.  `covering` is the host of that log;
# then the blocks of that log between which the event would be, if known; and, for an end
# without a block, times by the clock of `clock_of`.  `too_...` is a second such stretch.
_COLUMNS = (
    "kind string, source bigint, number bigint, stream bigint, key bigint, until_key bigint,"
    " host bigint, queue bigint, sent_queue bigint, at_ms bigint, covering bigint,"
    " block_from bigint, block_to bigint, clock_of bigint, at_from bigint, at_to bigint,"
    " sent_at bigint, sent_block bigint, accepted_at bigint, accepted_block bigint, place bigint,"
    " ack_at bigint, grade bigint, acked_by bigint, too_covering bigint, too_block_from bigint,"
    " too_block_to bigint, too_clock_of bigint, too_at_from bigint, too_at_to bigint"
)
COLUMN_NAMES = [each.split()[0] for each in _COLUMNS.split(", ")]


def select(kind: str, **named: str) -> str:
    """Return a SELECT list of `_COLUMNS`; columns that `named` lacks are null."""
    parts = [f"{kind} AS kind"]
    parts += [f"CAST({named.get(name, 'NULL')} AS BIGINT) AS {name}" for name in COLUMN_NAMES[1:]]
    return "SELECT " + ", ".join(parts)


def candidate(kind: str, **named: str) -> str:
    """Return the same as one struct."""
    parts = [f"'kind', {kind}"]
    parts += [f"'{name}', CAST({named.get(name, 'NULL')} AS BIGINT)" for name in COLUMN_NAMES[1:]]
    return f"named_struct({', '.join(parts)})"


#: The columns of a candidate about one message.
MESSAGE = {
    "source": "source", "number": "number", "stream": "stream", "key": "key",
    "sent_queue": "sent_queue", "queue": "queue", "host": "coalesce(host, receiver)",
    "at_ms": "coalesce(sent_at, accepted_at)", "sent_at": "sent_at", "sent_block": "sent_block",
    "accepted_at": "accepted_at", "accepted_block": "accepted_block", "place": "place",
    "ack_at": "ack_at",
}  # fmt: skip
ID = {"source": "source", "number": "number", "stream": "stream"}


def found_in(table: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Apply all `rules` in one pass over `table`; a UNION would compute the table for each."""
    found = ", ".join(f"if({when}, {what}, NULL)" for what, when in rules)
    return f"SELECT inline(filter(array({found}), found -> found IS NOT NULL)) FROM {table}"
