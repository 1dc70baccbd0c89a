"""Files of `storage\\lqs`: read strictly, because their format is known from examples only."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.migration.errors import BadSource
from qmd.migration.lqs import FILE_BYTES_MAX, LINES_MAX, parse_lqs, read_folder
from qmd.migration.security_descriptor import parse_descriptor
from tests import windows_files
from tests.windows_files import lqs

DATA = Path(__file__).parents[2] / "data" / "windows"


def test_all_properties_are_read():
    queue, unknown = parse_lqs(
        lqs(Type="{0d1a9c9e-6a55-4a86-9b6e-5f0c6b3f7a10}", BasePriority="-3")
    )

    assert unknown == []
    assert queue.name == "private$\\orders"
    assert not queue.public
    assert (queue.label, queue.transactional, queue.journal) == ("Orders", True, True)
    assert (queue.quota_kb, queue.journal_quota_kb) == (0xFFFFFFFF, 1024)
    assert (queue.authenticate, queue.privacy, queue.base_priority) == (False, "optional", -3)
    assert queue.type == "0d1a9c9e-6a55-4a86-9b6e-5f0c6b3f7a10"
    assert queue.security == windows_files.descriptor(windows_files.DEFAULT)
    assert parse_descriptor(queue.security).owner == windows_files.ADMINISTRATORS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding):
    content = lqs(Label="Bestellungen").decode("cp1252").replace("Best", "Bèst").encode(encoding)

    assert parse_lqs(content)[0].label == "Bèstellungen"


def test_public_queues_and_computers_in_names():
    assert parse_lqs(lqs(QueueName="\\prices"))[0].public
    assert parse_lqs(lqs(QueueName="hosta\\Private$\\orders"))[0].name == "Private$\\orders"


def test_unknown_keys_are_reported_and_other_sections_ignored():
    content = lqs(Novelty="1") + b"[Signature]\r\nSignature=x\r\n"

    assert parse_lqs(content)[1] == ["novelty"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"QueueName": ""}, "QueueName"),
        ({"QueueName": "\\private$\\"}, "QueueName"),
        ({"QueueName": "\\private$\\a\x07b"}, "QueueName"),
        ({"Journal": "yes"}, "journal"),
        ({"Transaction": "2"}, "transaction"),
        ({"Quota": "4294967296"}, "quota"),
        ({"Quota": "-1"}, "quota"),
        ({"PrivLevel": "3"}, "privlevel"),
        ({"BasePriority": "high"}, "basepriority"),
        ({"Type": "orders"}, "type"),
        ({"Security": "0"}, "security"),
        ({"Label": "x" * 1001}, "label"),
        ({"Label": "a\0b"}, "null"),
    ],
)
def test_values_that_are_not_understood_are_refused(changes, reason):
    with pytest.raises(BadSource, match=reason):
        parse_lqs(lqs(**changes))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Properties"),
        (b"QueueName=x\r\n", "line 1"),
        (b"[Properties]\r\nnothing\r\n", "line 2"),
        (b"[Properties]\r\nLabel=a\r\nlabel=b\r\n", "repeats"),
        (b"[Properties]\n" + b"a=b\n" * LINES_MAX, "lines"),
        (b"x" * (FILE_BYTES_MAX + 1), "bytes"),
        (b"\xff\xfe\x00", "Properties|line 1"),
    ],
)
def test_broken_files_are_refused(content, reason):
    with pytest.raises(BadSource, match=reason):
        parse_lqs(content)


def test_a_folder_becomes_a_collection_like_that_of_the_script():
    found = read_folder(DATA / "lqs", "HOSTA")

    assert found.source == "lqs"
    assert [queue.name for queue in found.queues] == ["private$\\orders", "private$\\replies"]
    assert [(note.about, note.text) for note in found.notes] == [
        ("private$\\replies", "keys that are not known: novelty")
    ]


def test_a_broken_file_in_a_folder_is_named(tmp_path):
    (tmp_path / "00000007.aabbccdd").write_bytes(b"\0" * 10)

    with pytest.raises(BadSource, match=r"00000007\.aabbccdd"):
        read_folder(tmp_path, "HOSTA")


def test_two_files_of_one_queue_are_refused(tmp_path):
    (tmp_path / "1").write_bytes(lqs())
    (tmp_path / "2").write_bytes(lqs(QueueName="\\PRIVATE$\\orders"))

    with pytest.raises(BadSource, match="2: 1 describes"):
        read_folder(tmp_path, "HOSTA")
