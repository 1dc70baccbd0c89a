"""`qmd upgrade` on folders of earlier versions, and on one of a later version."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest

from storage.engine import schema
from tests.crash import old_folder
from tests.process.harness import Daemon, Hosts

LATEST = schema.latest_version(schema.read_migrations())


def old(hosts: Hosts, version: int) -> Daemon:
    daemon = hosts.daemon(start=False)
    data = daemon.folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    old_folder.restore(version, data, old_folder.PORT)
    return daemon


@pytest.mark.parametrize("version", [1, 33])
def test_the_migrations_are_named_and_run(hosts: Hosts, version: int) -> None:
    daemon = old(hosts, version)
    before = (daemon.folder / "data" / "queues.db").read_bytes()

    (plan,) = daemon.json("upgrade", "--dry-run")

    assert (plan["schema"], plan["latest"], plan["done"]) == (version, LATEST, False)
    assert [each["schema"] for each in plan["migrations"]] == list(range(version + 1, LATEST + 1))
    assert {"schema": 34, "name": "groups"} in plan["migrations"]
    assert (daemon.folder / "data" / "queues.db").read_bytes() == before

    (done,) = daemon.json("upgrade")
    assert done["done"]
    (nothing,) = daemon.json("upgrade", "--dry-run")
    assert nothing["migrations"] == []
    daemon.start()
    assert daemon.count("orders") == 2 * old_folder.COUNT


def test_a_downgrade_is_refused_with_words(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.terminate()
    with contextlib.closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db:
        db.execute("PRAGMA user_version = 9999")

    for arguments in (("upgrade",), ("upgrade", "--dry-run")):
        done = daemon.cli(*arguments, check=False)
        assert done.returncode == 1
        assert b"install the newer version again" in done.stderr
