"""Changes of incoming sequences and of the history of message ids in a batch."""

import sqlite3
from collections.abc import Sequence

from storage.engine.load import Load
from storage.tables import message_id_history as history
from storage.tables import sequences
from storage.tables.sequences import encode_sequence_id


class IncomingChanges:
    """The changes that the open batch collects for detecting duplicates.

    Sequences are those of transactional messages, the history that of all others.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._new_sequences: list[sequences.NewSequence] = []
        # Only the last state within a batch is written.
        self._states: dict[int, sequences.SequenceState] = {}
        self._places: dict[int, tuple[bytes, str]] = {}
        self._removed_sequences: list[int] = []
        self._history: list[tuple[history.Segment, list[int]]] = []
        self._forgotten_history: list[int] = []

    def add_sequence(self, new: sequences.NewSequence) -> None:
        """Add an incoming sequence to a queue that its source addresses by this name.

        The caller chooses the id: one above all existing ids.  The state after the first message
        can therefore be set in the same batch.
        """
        self._new_sequences.append(new)
        self._load.count(1)

    def set_place(self, incoming_id: int, name: bytes, origin: str) -> None:
        """Set the name by which a source addresses the queue of a sequence, and its origin."""
        self._places[incoming_id] = (name, origin)
        self._load.count(1)

    def remove_sequences(self, incoming_ids: Sequence[int]) -> None:
        """Delete incoming sequences, including the states that they get in this batch."""
        self._removed_sequences += incoming_ids
        for incoming_id in incoming_ids:
            self._states.pop(incoming_id, None)
        self._load.count(len(incoming_ids))

    def set_sequence(
        self,
        incoming_id: int,
        sequence_id: int,
        number: int,
        at_s: int,
        rejected: int = 0,
        contradictions: int = 0,
        last_message: int = 0,
        first_number: int = 0,
        first_message: int = 0,
        first_digest: int = 0,
    ) -> None:
        """Set the last accepted number of a sequence, its rejections, and its first message.

        `IncomingSequenceRow` describes the fields.
        """
        at = (encode_sequence_id(sequence_id), number, at_s)
        first = first_number, first_message, first_digest
        state = (*at, rejected, contradictions, last_message, *first, incoming_id)
        self._states[incoming_id] = state
        self._load.count(1)

    def remember_message_ids(self, segment: history.Segment) -> list[int]:
        """Return the list for the numbers that a segment gets with this batch.

        The list holds the first and the last number of each run.  The caller may append to it as
        long as the batch is open.
        """
        numbers: list[int] = []
        self._history.append((segment, numbers))
        self._load.count(1)
        return numbers

    def forget_message_ids(self, segment_ids: Sequence[int]) -> None:
        """Delete segments of the history, including the numbers that they get in this batch."""
        if segment_ids:
            self._forgotten_history += segment_ids
            self._load.count(1)

    # Methods for the batch: it writes these changes between those of other tables.

    def write_sequences(self, db: sqlite3.Connection) -> None:
        if self._new_sequences:
            sequences.add(db, self._new_sequences)
        for incoming_id, (name, origin) in self._places.items():
            sequences.set_place(db, incoming_id, name, origin)
        if self._states:
            sequences.set_states(db, list(self._states.values()))
        if self._removed_sequences:
            sequences.remove(db, self._removed_sequences)

    def write_history(self, db: sqlite3.Connection) -> None:
        if self._history:
            history.remember(db, self._history)
        if self._forgotten_history:
            history.forget(db, self._forgotten_history)
