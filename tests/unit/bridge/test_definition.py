"""The file of bridges: read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.bridge.definition import Amqp, BadDefinition, parse_definitions, read_definitions

NATS = """
[bridge.{name}]
kind = "nats"
direction = "{way}"
queue = "orders"
url = "nats://a"
stream = "S"
subject = "{subject}"
"""


def nats(name: str = "a", way: str = "out", subject: str = "s") -> str:
    return NATS.format(name=name, way=way, subject=subject)


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path):
    (tmp_path / "secret").write_text("guest\n")
    file = tmp_path / "bridges.toml"
    file.write_text(
        '[bridge.a]\nkind = "amqp"\ndirection = "in"\nqueue = "orders"\nurl = "amqp://broker:5672"\n'
        'address = "/amq/queue/a"\nuser = "ann"\npassword_file = "secret"\n'
    )

    found = read_definitions(file)["a"]
    assert isinstance(found, Amqp)
    assert found.password == "guest"
    assert (found.batch, found.remote) == (100, "amqp broker /amq/queue/a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[bridge", "Expected"),
        ("[bridge.a]\n", "kind"),
        (nats().replace("nats", "carrier-pigeon"), "carrier-pigeon"),
        (nats() + "colour = 1\n", "colour"),
        (nats() + "batch = 0\n", "batch"),
        (nats() + "user = 1\n", "user"),
        (nats(name="Capital"), "small letters"),
        (nats().replace('subject = "s"', ""), "subject"),
        (nats("a", "out") + nats("b", "in"), "circles"),
        ('[bridge.a]\nkind = "s3"\ndirection = "in"\nqueue = "q"\nbucket = "b"\n', "prefix"),
    ],
)
def test_other_files_are_refused(text: str, reason: str):
    with pytest.raises(BadDefinition, match=reason):
        parse_definitions(text, Path("/"))


def test_two_ways_with_two_subjects_are_allowed():
    assert len(parse_definitions(nats("a", "out", "s") + nats("b", "in", "t"), Path("/"))) == 2
