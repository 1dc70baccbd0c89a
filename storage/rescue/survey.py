"""The content of a data folder, damaged or not: all readable messages, and their condition.

It reads the small tables first, because they define where messages belong; then the messages.

A message is certain, damaged (its content differs from the stored content), or in doubt: its
content is intact, but it may have been removed since, because the sources about its row disagree
(salvage.py).
"""

import sqlite3
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from protocol import parse_user_message
from protocol.errors import ProtocolError
from storage.engine import schema
from storage.errors import KeyMissing
from storage.rescue.database_file import DatabaseFile
from storage.rescue.salvage import INDEX, UNKNOWN, Fault, FoundRow, Layout, Salvage, Value
from storage.tables import outcomes
from storage.tables.damaged import checksum_of, is_whole
from storage.tables.keys import (
    OUTGOING_TRANSACTIONAL_LEVEL,
    arrival_of,
    level_of,
    lookup_id_of,
    queue_id_of,
)
from storage.tables.outcomes import OutcomeRow
from storage.tables.sealing import require
from storage.vault import Vault

MESSAGE_TABLES = ("message", "outgoing", "awaiting")
#: The table of the blocks of events; of these only the outcomes are saved, the latest ones.
BLOCKS, BLOCK_COLUMNS = "event_block", 9
OUTCOMES_MAX = 1_000_000
PACKET_BYTES_MIN = 100  # of a user message; other blobs in the same columns are shorter

#: Columns without the rowid, by table: those of a complete row.  Later schemas added more.
_COLUMNS: dict[str, tuple[type | tuple[type, ...], ...]] = {
    "message": (int, (int, type(None)), (str, type(None)), int, int, (int, type(None)), bytes),
    "outgoing": ((int, type(None)), bytes),
    "awaiting": (int, bytes, int, int, (int, type(None)), bytes),
    "unconfirmed": (int, int),
    "queue": (str, str, str, int, int, (int, type(None)), (int, type(None)), int, int, int),
    "outgoing_queue": (str, str, str, int, bytes, int, int, int),
    "identity": (bytes, int),
    "incoming_sequence": (bytes, int, bytes, int, int),
    "message_id_history": (bytes, int, int),
    "outcome": (bytes, bytes, int),
    "own_dead_letter": (int, str, int),
    "reader": (str, int, int),
    "reader_queue": (int, int, bytes, int, int, int, int, int, int, int),
    "reservation": (int,),
    "stage": (str, int, int, str, int, int, int, bytes),
    "publication": (str, int, int, int),
    "unaddressed": (bytes, int, bytes, int),
    "owed": (int, int, bytes, int),
    "retry_policy": (int, int, int, float, int, float, str),
    "retry": (int,),
    "delayed": (int, int, str, int, str, int, bytes, int),
    "sealing_key": (bytes, int),
    "link_delivery": (bytes, bytes, int, bytes, int),
}
#: All columns of the tables without a rowid.
_KEYED: dict[str, tuple[type | tuple[type, ...], ...]] = {
    "branch": (bytes, str, int),
    "way_back": (bytes, bytes, str, int),
    "peer_origin": (bytes, str, str, int, int, str, bytes, int, bytes, int, int),
    "directory_change": (bytes, str, int, int),
    "access_entry": (str, str, str, (int, type(None)), str),
}
#: Columns after those of a complete row: how many there may be today (the seal is the last), and
#: which of them is the id of the part that completes the packet.
_LATER: dict[str, tuple[int, int]] = {"message": (4, 1), "outgoing": (6, 3), "awaiting": (5, 2)}


#: Rows that are used even in doubt, if there are no others: recreating a queue is harmless, and the
#: identity never changes.
_HARMLESS = frozenset(("queue", "identity"))


class KeptMessage(NamedTuple):
    """A message as it was found.  `problem` is the reason why it is not reliable, or None."""

    table: str
    key: int
    queue: str  # its name; for an outgoing message, its destination
    columns: tuple[Value, ...]  # without the key
    packet: bytes
    problem: str | None
    is_doubted: bool  # it may have been removed; otherwise a problem means that it is damaged

    @property
    def lookup_id(self) -> int:
        return lookup_id_of(self.key)

    @property
    def arrived_at_ms(self) -> int:
        """The arrival time in milliseconds; 0 if it is not known."""
        arrived = self.columns[0] if self.table == "message" and self.columns else None
        return arrived if isinstance(arrived, int) else 0

    @property
    def reason(self) -> str | None:
        """The reason why it was put into a dead-letter queue."""
        reason = self.columns[2] if self.table == "message" and len(self.columns) > 2 else None
        return reason if isinstance(reason, str) else None


class Survey:
    """The content of a folder's database; `close` it after use.

    Opening raises OSError, and KeyMissing if the vault lacks a key of the database.
    """

    def __init__(self, path: Path, vault: Vault | None = None) -> None:
        self._vault = vault
        self._file = DatabaseFile(path)
        self.pages = self._file.page_count
        self.page_bytes = self._file.page_bytes
        #: Commits are lost, or parts of them: rows may be older than the acknowledged state.
        self.is_outdated = self._file.is_outdated
        #: Faults, as sentences.
        self.findings: list[str] = list(self._file.findings)
        #: The small tables: columns without the rowid, by rowid.
        self.rows: dict[str, dict[int, tuple[Value, ...]]] = {
            table: {} for table in _COLUMNS if table not in MESSAGE_TABLES
        }
        #: Tables without a rowid: complete rows.
        self.keyed: dict[str, list[tuple[Value, ...]]] = {table: [] for table in _KEYED}
        self.parts = _Parts(vault)
        self.counters: dict[str, int] = {}
        self._doubted: Counter[str] = Counter()
        self._salvage = Salvage(self._file, _layout)
        self.findings += map(_fault, self._salvage.faults())
        small = {"counter", "shared_part", BLOCKS, *self.rows, *self.keyed}
        carried: deque[OutcomeRow] = deque(maxlen=OUTCOMES_MAX)
        for found in self._salvage.rows(small):
            if isinstance(found, Fault):
                self.findings.append(_fault(found))
            elif found.table == "counter":
                self._add_counter(found)
            elif found.table == "shared_part":
                self._add_part(found)
            elif found.table == BLOCKS:
                carried += _outcomes(found)
            elif found.table in self.keyed:
                self._add_keyed(found)
            elif found.table in self.rows:
                self._add(found)
        self._add_outcomes(carried)
        try:
            needed = (row[0] for row in self.rows["sealing_key"].values())
            require({each for each in needed if isinstance(each, bytes)}, vault)
        except KeyMissing:
            self.close()
            raise
        for table, count in self._doubted.items():
            rows = "1 row" if count == 1 else f"{count} rows"
            self.findings.append(f"{rows} of table {table} may have been deleted, and are ignored")

    def close(self) -> None:
        self._file.close()
        self.parts.close()

    def _add(self, row: FoundRow) -> None:
        rows = self.rows[row.table]
        if not _fits(row.table, row.values):
            if row.certain:
                self.findings.append(f"row {row.rowid} of table {row.table} is damaged")
        elif row.certain or row.table in _HARMLESS:
            # Certain rows come first.
            if row.certain and rows.get(row.rowid, row.values[1:]) != row.values[1:]:
                self.findings.append(f"there are two rows {row.rowid} of table {row.table}")
            rows.setdefault(row.rowid, row.values[1:])
        else:
            self._doubted[row.table] += 1

    def _add_keyed(self, row: FoundRow) -> None:
        kinds = _KEYED[row.table]
        if not row.certain:
            self._doubted[row.table] += 1
        elif len(row.values) == len(kinds) and all(map(isinstance, row.values, kinds)):
            self.keyed[row.table].append(row.values)
        else:
            self.findings.append(f"a row of table {row.table} is damaged")

    def _add_part(self, row: FoundRow) -> None:
        """Add a shared part.  An intact part is valid even in doubt: no id is used twice."""
        match row.values:
            case (_, bytes(packet), int(checksum), *later) if checksum_of(packet) == checksum:
                self.parts.add(row.rowid, packet, *later[:2])
            case _ if row.certain:
                self.findings.append(
                    f"row {row.rowid} of table shared_part is damaged, and with it the copies of a"
                    " message that share it"
                )

    def _add_counter(self, row: FoundRow) -> None:
        """Add a counter.  Counters only grow: of two values the higher one is the later."""
        match row.values:
            case (str(name), int(value)):
                self.counters[name] = max(value, self.counters.get(name, value))
            case _ if row.certain:
                self.findings.append("a row of table counter is damaged")

    def _add_outcomes(self, carried: Iterable[OutcomeRow]) -> None:
        """Add the outcomes in blocks of events, as rows of the table; the latest of each token."""
        rows = self.rows["outcome"]
        place = {token: rowid for rowid, (token, *_) in rows.items()}
        following = max(rows, default=0) + 1
        for row in carried:
            rowid = place.setdefault(row.token, following)
            if rowid == following:
                following += 1
            before = rows.get(rowid, (None, None, 0))[2]
            if isinstance(before, int) and row.at_s >= before:
                rows[rowid] = tuple(row)

    def messages(self) -> Iterator[KeptMessage]:
        """Yield all readable messages, and add to `findings`.

        Messages with certain rows come first, intact or not; then those in doubt that are not among
        the first.
        """
        whole: dict[str, set[int]] = {table: set() for table in MESSAGE_TABLES}
        doubted: set[tuple[str, int, int]] = set()
        for found in self._salvage.rows({"", UNKNOWN, "damaged", *MESSAGE_TABLES}):
            if isinstance(found, Fault):
                self.findings.append(_fault(found))
                continue
            table = (
                found.table if found.table not in ("", UNKNOWN) else _table_by_shape(found.values)
            )
            if table == "damaged":
                yield self._set_aside(found)
            if table not in MESSAGE_TABLES:
                continue
            message = self._message(table, found)
            if message.is_doubted:
                identity = table, message.key, checksum_of(message.packet)
                # A key is used only once: the message is present, and this is its former row.
                if message.key not in whole[table] and identity not in doubted:
                    doubted.add(identity)
                    yield message
                continue
            if message.problem is None and message.key in whole[table]:
                message = message._replace(problem="another message has its place")
            if message.problem is None:
                whole[table].add(message.key)
            yield message

    def _message(self, table: str, row: FoundRow) -> KeptMessage:
        packet, seal = _packet_and_seal(table, row.values)
        message = KeptMessage(
            *(table, row.rowid, self._queue_of(table, row), row.values[1:], packet, None),
            is_doubted=not row.certain,
        )
        problem = self._problem_of_row(message, row)
        if seal is not None:
            message, problem = self._opened(message, seal, problem)
        if problem is None and _part_id(table, row.values) is None:
            problem = self._problem_of_packet(message)
        part_id = _part_id(table, row.values)
        part = None if part_id is None else self.parts.get(part_id)
        if part is not None and (problem is None or message.is_doubted):
            message = message._replace(packet=message.packet + part)
        if problem is None and part_id is not None:
            problem = (
                f"the end of its packet, part {part_id}, which it shares, is damaged"
                if part is None
                else self._problem_of_packet(message)
            )
        return message._replace(problem=problem)

    def _set_aside(self, row: FoundRow) -> KeptMessage:
        """Return a message that a daemon found to be damaged: a row of table `damaged`."""
        table = next((each for each in MESSAGE_TABLES if each in row.values), "message")
        key = next((value for value in row.values[3:4] if isinstance(value, int)), 0)
        packet = next((value for value in row.values[4:5] if isinstance(value, bytes)), b"")
        seal = next((value for value in row.values[5:6] if isinstance(value, bytes)), None)
        if seal is not None and self._vault is not None:
            packet, _ = self._vault.opened("damaged", row.rowid, packet, seal)
        why = "it was set aside, because it differed from its stored content"
        # For a message that waited for its final ack, the queue was not recorded.
        queue = "" if table == "awaiting" else self._queue(table, queue_id_of(key))
        return KeptMessage(table, key, queue, (), packet, why, is_doubted=not row.certain)

    def _queue_of(self, table: str, row: FoundRow) -> str:
        if table != "awaiting":
            return self._queue(table, queue_id_of(row.rowid))
        queue_id = next((value for value in row.values[1:2] if isinstance(value, int)), 0)
        return self._queue(table, queue_id)

    def _queue(self, table: str, queue_id: int) -> str:
        of_queue = self.rows["queue" if table == "message" else "outgoing_queue"]
        row = of_queue.get(queue_id)
        return str(row[0]) if row is not None else f"queue {queue_id}, which is lost"

    def _opened(
        self, message: KeptMessage, seal: bytes, problem: str | None
    ) -> tuple[KeptMessage, str | None]:
        """Return an encrypted message decrypted, and its problem."""
        if self._vault is None:
            return message, problem or "its packet is encrypted, and no key was given"
        values: tuple[Value, ...] = (None, *message.columns)
        part_id = _part_id(message.table, values)
        packet, checksum = self._vault.opened(
            message.table, message.key, message.packet, seal, part_id
        )
        if problem is None and not is_whole(packet, checksum):
            problem = "its packet cannot be decrypted: it was changed, or belongs to another row"
        return message._replace(packet=packet), problem

    def _problem_of_row(self, message: KeptMessage, row: FoundRow) -> str | None:
        if row.doubt is not None:
            return f"it may have been removed before: {row.doubt}"
        if not _fits(message.table, row.values):
            return "its row is damaged"
        checksum = next(iter(row.values[len(_COLUMNS[message.table]) + 1 :]), None)
        if isinstance(checksum, int) and not is_whole(message.packet, checksum):
            return "its packet differs from the stored one: its checksum does not match"
        return None

    def _problem_of_packet(self, message: KeptMessage) -> str | None:
        try:
            packet = parse_user_message(message.packet)
        except ProtocolError as error:
            return f"its packet is damaged: {error}"
        if message.queue.endswith("which is lost"):
            return f"it belongs to {message.queue}"
        if message.table == "outgoing" and level_of(message.key) == OUTGOING_TRANSACTIONAL_LEVEL:
            state = self.rows["outgoing_queue"][queue_id_of(message.key)]
            base, next_number = state[5], state[6]
            assert isinstance(base, int)
            assert isinstance(next_number, int)
            number = arrival_of(message.key) - base
            header = packet.transaction
            if header is None or header.sequence_number != number or number >= next_number:
                return "its number does not match its place in the sequence"
        return None


def _layout(page_bytes: int) -> Layout:
    """Return the roots of a new database: they are assigned in the order of the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        schema.prepare(db, schema.read_migrations(), now_s=0, new_id=bytes(16))
        rows = db.execute("SELECT type, name, rootpage FROM sqlite_master WHERE rootpage > 0")
        return {root: name if kind == "table" else INDEX for kind, name, root in rows}


def _fits(table: str, values: tuple[Value, ...]) -> bool:
    """Return whether a row has the columns of its table; the first value is the rowid's."""
    kinds = _COLUMNS[table]
    return len(values) > len(kinds) and all(
        isinstance(value, kind) for value, kind in zip(values[1:], kinds, strict=False)
    )


def _table_by_shape(values: tuple[Value, ...]) -> str:
    """Return the table that has columns for these values, or "".

    The packet is followed by its checksum since schema 2, and by more columns in later schemas.
    """
    for table in MESSAGE_TABLES:
        packet = len(_COLUMNS[table])
        if packet < len(values) <= packet + 1 + _LATER[table][0]:
            content = values[packet]
            if isinstance(content, bytes) and len(content) >= PACKET_BYTES_MIN:
                return table
    return ""


def _packet_and_seal(table: str, values: tuple[Value, ...]) -> tuple[bytes, bytes | None]:
    """Return the packet of a row as stored, and its seal if it is encrypted."""
    at = len(_COLUMNS[table])
    packet = next((value for value in values[at : at + 1] if isinstance(value, bytes)), None)
    if packet is None:  # a damaged row
        packet = next((value for value in reversed(values) if isinstance(value, bytes)), b"")
        return packet, None
    at += _LATER[table][0]
    return packet, next((value for value in values[at : at + 1] if isinstance(value, bytes)), None)


def _outcomes(row: FoundRow) -> list[OutcomeRow]:
    """Return the outcomes that a block of events carries; of a block in doubt none."""
    column = next(iter(row.values[-1:]), None)
    if not row.certain or len(row.values) != BLOCK_COLUMNS or not isinstance(column, bytes):
        return []
    try:
        return outcomes.carried(column)
    except msgspec.MsgspecError:
        return []


def _part_id(table: str, values: tuple[Value, ...]) -> int | None:
    """Return the id of the part that completes the packet; None if the row has all of it."""
    found = next(iter(values[len(_COLUMNS[table]) + 1 + _LATER[table][1] :]), None)
    return found if isinstance(found, int) else None


class _Place(NamedTuple):
    """The place of a piece in the file of parts."""

    offset: int
    size: int
    seal: bytes | None
    follows: int | None


class _Parts:
    """Shared parts of copies, by id; stored on disk, because they may be many and long.

    Encrypted ones stay encrypted there.
    """

    def __init__(self, vault: Vault | None) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._places: dict[int, _Place] = {}
        self._vault = vault

    def add(self, part_id: int, packet: bytes, seal: Value = None, follows: Value = None) -> None:
        self._places[part_id] = _Place(
            self._file.seek(0, 2),
            len(packet),
            seal if isinstance(seal, bytes) else None,
            follows if isinstance(follows, int) else None,
        )
        self._file.write(packet)

    def get(self, part_id: int) -> bytes | None:
        """Return a part, with all its pieces; None if one is missing or damaged."""
        pieces: list[bytes] = []
        following: int | None = part_id
        while following is not None and len(pieces) <= len(self._places):
            piece = self._piece(following)
            if piece is None:
                return None
            pieces.append(piece)
            following = self._places[following].follows
        return b"".join(reversed(pieces)) if following is None else None

    def _piece(self, part_id: int) -> bytes | None:
        place = self._places.get(part_id)
        if place is None:
            return None
        self._file.seek(place.offset)
        stored = self._file.read(place.size)
        if place.seal is None:
            return stored
        if self._vault is None:
            return None
        packet, checksum = self._vault.opened(
            "shared_part", part_id, stored, place.seal, place.follows
        )
        return packet if is_whole(packet, checksum) else None

    def items(self) -> Iterator[tuple[int, bytes, int | None]]:
        """Return the id, the bytes, and the id of the piece before it, of each intact piece."""
        for part_id, place in self._places.items():
            packet = self._piece(part_id)
            if packet is not None:
                yield part_id, packet, place.follows

    def close(self) -> None:
        self._file.close()


def _fault(fault: Fault) -> str:
    of_table = f" of table {fault.table}" if fault.table else ""
    return f"{fault.sentence}{of_table}"
