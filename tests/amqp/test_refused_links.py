"""Links that the door refuses: their clients see it from the attach frame that answers theirs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp import frames
from tests.amqp.door import door_of
from tests.process.harness import Hosts

pytest.importorskip("proton")
SOURCE, TARGET = 5, 6  # fields of an attach frame


@pytest.mark.parametrize(
    ("role", "own"), [(frames.SENDER, TARGET), (frames.RECEIVER, SOURCE)], ids=["send", "receive"]
)
def test_the_answer_to_a_refused_link_has_no_terminus(hosts: Hosts, role: bool, own: int) -> None:
    with door_of(hosts, "orders") as door, frames.RawClient(door.port) as client:
        client.write(
            frames.opening(),
            frames.attach("refused", 0, role, "nosuch"),
            frames.attach("opened", 1, role, "orders"),
        )
        answers = {}
        while len(answers) < 2:
            answer = client.read_until(frames.ATTACH)
            answers[answer.fields[0]] = answer.fields[own : own + 1]
        assert answers["refused"] in ([], [None])  # clause 2.6.3
        assert answers["opened"][0] is not None


@pytest.mark.parametrize("name", [None, 5, b"", ["orders"]], ids=repr)
def test_a_link_without_a_name_ends_its_connection_with_an_error(hosts: Hosts, name: Any) -> None:
    with door_of(hosts, "orders") as door, frames.RawClient(door.port) as client:
        client.write(frames.opening(), frames.attach(name, 0, frames.SENDER, "orders"))
        [error] = client.read_until(frames.CLOSE).fields
        assert error.value[0] == "amqp:decode-error"  # clause 2.7.3: the field is mandatory
        assert "no name" in error.value[1]
    assert "Traceback" not in door.log.read_text()
