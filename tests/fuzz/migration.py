"""Targets: files that come from Windows for a migration."""

from __future__ import annotations

import json
from collections.abc import Iterable

from qmd.migration.collection import parse_collection
from qmd.migration.errors import BadSource
from qmd.migration.lqs import parse_lqs
from qmd.migration.rights import Accounts, wanted_rights
from qmd.migration.security_descriptor import parse_descriptor
from qmd.migration.windows_message import read_line
from tests import windows_files
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target


def lqs_files() -> Iterable[bytes]:
    yield windows_files.lqs()
    yield windows_files.lqs(Label="Bèstellungen").decode("cp1252").encode("utf-16")
    yield windows_files.lqs() + b"=a value without a key\n"
    yield windows_files.lqs(BasePriority="-1", Type="{0d1a9c9e-6a55-4a86-9b6e-5f0c6b3f7a10}")


def check_lqs(content: bytes) -> None:
    found, refused = outcome(BadSource, parse_lqs, content)
    if found is None:
        assert str(refused)
        return
    queue, unknown = found
    assert queue.name.isprintable()
    assert all(unknown)


def descriptors() -> Iterable[bytes]:
    yield windows_files.descriptor(windows_files.DEFAULT)
    yield windows_files.descriptor(None)
    yield windows_files.descriptor([(windows_files.ANN, False, 0x10000000)], windows_files.ANN)


def check_descriptor(content: bytes) -> None:
    found, refused = outcome(BadSource, parse_descriptor, content)
    if found is None:
        assert str(refused)
        return
    wanted = wanted_rights("private$\\orders", found, {}, Accounts({}))
    assert ("everyone", "allow") in wanted.entries


def collections() -> Iterable[bytes]:
    yield json.dumps(windows_files.collection(windows_files.queue("orders"))).encode()
    yield json.dumps(windows_files.collection()).encode()


def check_collection(content: bytes) -> None:
    found, refused = outcome(BadSource, parse_collection, content)
    assert found is not None or str(refused)


def lines() -> Iterable[bytes]:
    yield windows_files.message(1, b"10 screws").strip()
    yield windows_files.message(2, b"", transaction_id=None, sender_id_base64="AQUAAA==").strip()
    no_number = "6b7d7cf2-64a5-4f1b-9e5d-0f6c0d0f1c11\\x"
    yield windows_files.message(3, b"", transaction_id=no_number).strip()


def check_line(line: bytes) -> None:
    found, refused = outcome(BadSource, read_line, line)
    assert found is not None or str(refused)


TARGETS = (
    Target("windows_lqs", check_lqs, lqs_files),
    Target("windows_security", check_descriptor, descriptors),
    Target("windows_collection", check_collection, collections),
    Target("windows_message", check_line, lines),
)
