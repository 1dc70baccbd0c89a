"""docs/model.md maps steps of the model to names in the code: both must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from model.__main__ import CHECKS, MODEL
from qmd.core.sequence import IncomingSequence, OutgoingSequence
from qmd.operations.send import MessageSender
from qmd.outcomes.promises import Promises
from qmd.outcomes.undeliverable import Undeliverable
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.outgoing_queues import OutgoingQueues
from qmd.transfer.acceptance import Acceptance
from qmd.transfer.incoming import Incoming
from qmd.transfer.release import OutgoingRelease
from qmd.transfer.sequence_order import SequenceOrder

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {
    each.__name__: each
    for each in (
        Acceptance,
        Incoming,
        IncomingSequence,
        OutgoingQueues,
        OutgoingQueue,
        OutgoingSequence,
        OutgoingRelease,
        MessageSender,
        Promises,
        SequenceOrder,
        Undeliverable,
    )
}
TABLE = (ROOT / "docs/model.md").read_text().partition("## Model and code")[2].partition("\n## ")[0]
NAMES = sorted(set(re.findall(r"\b([A-Z]\w+)\.(\w+)", TABLE)))


def source_of(owner: type) -> str:
    return Path(*ROOT.parts, *owner.__module__.split(".")).with_suffix(".py").read_text()


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=".".join)
def test_the_names_in_the_table_exist_in_the_code(owner: str, name: str):
    assert owner in CLASSES
    assert re.search(rf"(def |self\.){name}\b", source_of(CLASSES[owner]))


def test_every_check_names_definitions_of_the_model():
    text = MODEL.read_text()
    for check in CHECKS:
        for define in check.defines.split():
            assert re.search(rf"\b{define.partition('=')[0]}\b", text), define
