"""The key file: made at the first start, and missed when it is gone."""

import asyncio
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from storage import DataMissing, Storage
from storage.engine import key_file, missing
from storage.engine.disk import Disk
from storage.rescue.repair import Rescue
from tests.unit.storage.support import NOW_MS, NOW_S, OPTIONS, OWN_ID, other_connection

SEED, OTHER = bytes(range(32)), bytes(range(32, 64))


def start(folder: Path, new_seed: bytes | None = SEED) -> bytes:
    """Open a folder as a queue manager does, and close it; return the seed of its key."""

    async def scenario() -> bytes:
        storage = await Storage.open(
            folder, OPTIONS, now_ms=NOW_MS, new_id=OWN_ID, new_seed=new_seed
        )
        await storage.close()
        return storage.identity.seed

    return asyncio.run(scenario())


def test_the_file_is_a_key_as_tls_libraries_read_it() -> None:
    loaded = load_pem_private_key(key_file.encode(SEED), None)

    assert loaded.private_bytes_raw() == SEED
    assert key_file.decode(key_file.encode(SEED)) == SEED


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff" * 200, key_file.encode(SEED)[:-30], key_file.encode(SEED)[20:]),
        key_file.encode(SEED).replace(b"MC4CAQ", b"MC4CAg"),
        key_file.encode(SEED).replace(b"PRIVATE", b"PUBLIC"),
    ],
)
def test_other_content_is_no_key(data: bytes) -> None:
    assert key_file.decode(data) is None


def test_the_first_start_makes_a_private_key_file_and_later_ones_keep_it(
    tmp_path: Path,
) -> None:
    assert start(tmp_path) == SEED
    assert start(tmp_path, OTHER) == SEED

    assert (tmp_path / key_file.NAME).stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("*.new"))


def test_a_folder_of_an_earlier_version_gets_a_key(tmp_path: Path) -> None:
    assert start(tmp_path, None) == b""

    assert start(tmp_path) == SEED


@pytest.mark.parametrize("torn", [b"", key_file.encode(OTHER)[:50]])
def test_a_key_that_no_start_has_recorded_may_be_torn(tmp_path: Path, torn: bytes) -> None:
    """The first start was interrupted while it wrote the file."""
    (tmp_path / key_file.NAME).write_bytes(torn)

    assert start(tmp_path) == SEED


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "is gone"),
        (b"", "is damaged"),
        (key_file.encode(OTHER), "was replaced"),
    ],
)
def test_a_lost_key_is_missing_data_until_an_operator_accepts_the_loss(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    start(tmp_path)
    file = tmp_path / key_file.NAME
    file.unlink()
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(DataMissing, match=text):
        start(tmp_path, OTHER)
    assert (file.read_bytes() if file.exists() else None) == content  # nothing was changed

    missing.accept(tmp_path)
    assert start(tmp_path, OTHER) == OTHER
    assert start(tmp_path) == OTHER


def test_the_key_is_never_read_or_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(key_file.encode(OTHER))
    os.symlink(elsewhere, tmp_path / "linked")

    with pytest.raises(OSError, match="symbolic links"):
        Disk().read_small(tmp_path / "linked")
    Disk().create_small(tmp_path / "linked", b"new")

    assert elsewhere.read_bytes() == key_file.encode(OTHER)
    assert not (tmp_path / "linked").is_symlink()


def test_the_database_does_not_contain_the_key(tmp_path: Path) -> None:
    start(tmp_path)

    db = other_connection(tmp_path)
    (recorded,) = db.execute("SELECT key_digest FROM identity").fetchone()
    db.close()
    assert recorded == key_file.digest(SEED)
    assert SEED not in (tmp_path / "queues.db").read_bytes()


def test_a_rescue_keeps_the_key(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    start(folder)

    rescue = Rescue(folder)
    list(rescue.run(now_s=NOW_S, new_id=OWN_ID))

    assert not rescue.losses or not any("key" in each for each in rescue.losses)
    assert start(rescue.fresh, OTHER) == SEED


def test_a_rescue_reports_a_lost_key(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    start(folder)
    (folder / key_file.NAME).unlink()

    rescue = Rescue(folder)
    list(rescue.run(now_s=NOW_S, new_id=OWN_ID))

    assert any("the key of the queue manager is lost" in each for each in rescue.losses)
