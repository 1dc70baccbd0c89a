"""Encrypted packets: their format, their place, their keys, and the bytes of the files."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from storage import Storage
from storage.errors import KeyFileError, KeyMissing
from storage.rescue import check
from storage.rescue.repair import Rescue
from storage.rescue.rewrite import examine, rewrite
from storage.tables import damaged, messages, outgoing, owed, shared_parts, stages, unaddressed
from storage.tables.damaged import is_whole
from storage.tables.owed import Owed
from storage.tables.unaddressed import Unaddressed
from storage.vault import SEAL_BYTES, TABLES, StorageKey, Vault, read_key
from tests.unit.storage.support import (
    KEY,
    NOW_MS,
    NOW_S,
    OPTIONS,
    OTHER_KEY,
    OWN_ID,
    durable,
    key,
    memory_database,
    opened,
    other_connection,
)

SECRET = b"the account number 4711 0815"
PACKET = bytes(range(60)) + SECRET * 30
TAMPERED = "UPDATE {table} SET {column} = ? WHERE rowid = ?"


def test_the_format_is_that_of_the_documentation() -> None:
    """The key is derived and the packet decrypted without the code under test."""
    stored, checksum, seal = Vault([KEY]).stored("message", 7, PACKET, part_id=3)

    key_id, salt, number, tag = seal[1:9], seal[9:25], seal[25:33], seal[33:]
    derived = HKDF(SHA256(), 32, salt, b"qmd sealed rows").derive(KEY.secret)
    covered = b"\1" + (7).to_bytes(8, "big") + (3).to_bytes(8, "big") + PACKET[:60]
    rest = AESGCM(derived).decrypt(bytes(4) + number, stored[60:] + tag, covered)

    assert (seal[:1], key_id, len(seal)) == (b"\1", KEY.id, SEAL_BYTES)
    assert checksum == crc32(stored)
    assert stored[:60] + rest == PACKET
    assert len(stored) == len(PACKET)
    assert SECRET not in stored


@pytest.mark.parametrize("table", TABLES)
def test_a_changed_byte_anywhere_is_noticed(table: str) -> None:
    vault = Vault([KEY])
    stored, _, seal = vault.stored(table, 7, PACKET)

    assert vault.opened(table, 7, stored, seal) == (PACKET, crc32(PACKET))
    for at in range(0, len(stored), 7):
        changed = bytearray(stored)
        changed[at] ^= 1
        packet, checksum = vault.opened(table, 7, bytes(changed), seal)
        assert not is_whole(packet, checksum)
        # All but the changed byte remains readable for an operator.
        assert sum(a != b for a, b in zip(packet, PACKET, strict=True)) == 1
    for at in range(len(seal)):
        other = bytearray(seal)
        other[at] ^= 1
        assert not is_whole(*vault.opened(table, 7, stored, bytes(other))), at


def test_a_row_in_the_place_of_another_is_noticed() -> None:
    vault = Vault([KEY])
    stored, _, seal = vault.stored("message", 7, PACKET, part_id=3)

    for table, row, part in (("outgoing", 7, 3), ("message", 8, 3), ("message", 7, 4)):
        assert not is_whole(*vault.opened(table, row, stored, seal, part))
    assert is_whole(*vault.opened("message", 7, stored, seal, 3))


def test_no_nonce_is_used_twice() -> None:
    """Neither in one run, nor by a later run that reads the same backup."""
    runs = [Vault([KEY]) for _ in range(3)]
    seals = [vault.stored("message", 7, PACKET)[2] for vault in runs for _ in range(100)]

    assert len({seal[9:33] for seal in seals}) == len(seals)


def test_a_run_with_many_packets_continues_with_another_derived_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.vault.NUMBERS_MAX", 3)
    vault = Vault([KEY])

    rows = [vault.stored("message", 7, PACKET) for _ in range(10)]

    assert len({seal[9:33] for _, _, seal in rows}) == 10
    assert len({seal[9:25] for _, _, seal in rows}) == 4
    assert all(is_whole(*vault.opened("message", 7, stored, seal)) for stored, _, seal in rows)


def test_rows_that_were_exchanged_in_the_file_are_not_delivered() -> None:
    with closing(memory_database(Vault([KEY]))) as db:
        messages.insert(db, [(key(at), 1, None, None, PACKET) for at in (1, 2)])
        db.executescript(
            "UPDATE message SET key = -1 WHERE rowid & 15 = 1;"
            "UPDATE message SET key = key - 1 WHERE key & 15 = 2;"
        )

        row = messages.find(db, key(1))

        assert row is not None
        assert not row.is_whole


def test_a_moved_row_is_sealed_for_its_new_place_and_a_damaged_one_does_not_become_valid() -> None:
    with closing(memory_database(Vault([KEY]))) as db:
        messages.insert(db, [(key(at), 1, None, None, PACKET) for at in (1, 2)])
        db.execute("UPDATE message SET packet = zeroblob(length(packet)) WHERE key = ?", (key(2),))

        messages.move(db, [messages.Move(key(1), key(11)), messages.Move(key(2), key(12))], 5)
        moved, broken = messages.find_all(db, [key(11), key(12)])

        assert (moved.packet, moved.is_whole) == (PACKET, True)
        assert not broken.is_whole


def fill(db: sqlite3.Connection) -> None:
    """Write a packet into each table that holds some."""
    messages.insert(db, [(key(1), 1, None, None, PACKET)])
    messages.insert_copies(db, [(key(2), 1, None, None, PACKET, (5, len(PACKET)))])
    shared_parts.insert(db, [(5, PACKET, None)])
    outgoing.insert(db, [(key(3), None, PACKET, None, False)])
    outgoing.insert(db, [(key(4), None, PACKET, 0, False)])
    damaged.keep(db, "message", key(9), PACKET, NOW_S)
    place = {"query": "q", "epoch": 1, "part": 1, "attempt": "a", "first_row": 0}
    stages.add(db, **place, row_count=1, at_s=NOW_S, data=PACKET)  # type: ignore[arg-type]
    unaddressed.add(db, Unaddressed(1, bytes(16), NOW_S, PACKET))
    owed.add(db, [Owed(1, 0x8004, False, PACKET)])
    db.execute("INSERT INTO awaiting SELECT 9, 1, x'00', 1, 1, NULL, packet, checksum, 0, NULL, 0,"
               " seal FROM outgoing LIMIT 0")  # fmt: skip


def read(db: sqlite3.Connection) -> None:
    """Compare each packet that `fill` has written."""
    assert [row.packet for row in messages.page(db, 16)] == [PACKET, PACKET * 2]
    assert all(row.is_whole for row in messages.page(db, 16))
    assert [row.packet for row in outgoing.page(db, 16)] == [PACKET] * 2
    assert all(row.is_whole for row in outgoing.page(db, 16))
    assert [row.packet for row in damaged.list_all(db)] == [PACKET]
    assert stages.data(db, [1]) == [PACKET]
    assert [(row.packet, whole) for row, whole in unaddressed.list_all(db)] == [(PACKET, True)]
    assert [(row.packet, whole) for row, whole in owed.list_all(db)] == [(PACKET, True)]


def files_with_the_secret(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if SECRET in file.read_bytes()]


async def filled(folder: Path, **options: object) -> Storage:
    storage = await Storage.open(
        folder,
        replace(OPTIONS, **options),
        now_ms=NOW_MS,
        new_id=OWN_ID,  # type: ignore[arg-type]
    )
    await storage.batch.run(fill)
    await storage.read(read)
    return storage


def test_no_byte_of_a_body_is_in_a_file_of_the_folder(folder: Path) -> None:
    async def check_files() -> None:
        storage = await filled(folder, keys=(KEY,))
        assert (folder / "queues.db-wal").stat().st_size > 0
        assert not files_with_the_secret(folder)
        await storage.close()
        assert not files_with_the_secret(folder)

    asyncio.run(check_files())
    asyncio.run(plain_copy(folder.with_name("plain")))


async def plain_copy(folder: Path) -> None:
    """Show that the search of the test above finds plain text."""
    storage = await filled(folder)
    await storage.close()
    assert files_with_the_secret(folder) == ["queues.db"]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("keys", [(), (OTHER_KEY,)], ids=["no key", "a wrong key"])
def test_without_its_key_a_folder_is_refused_unchanged(
    folder: Path, keys: tuple[StorageKey, ...]
) -> None:
    async def start() -> None:
        storage = await filled(folder, keys=(KEY,))
        await storage.close()
        before = contents(folder)
        with pytest.raises(KeyMissing) as refused:
            async with opened(folder, keys=keys):
                pass
        after = contents(folder)

        assert KEY.id.hex() in str(refused.value)
        assert KEY.secret.hex() not in str(refused.value)
        assert before.pop("lock") is not None
        after.pop("lock")
        assert after == before
        async with opened(folder, keys=(KEY,)) as storage:
            await storage.read(read)

    asyncio.run(start())


def test_a_new_key_is_for_new_rows_and_the_old_one_is_needed_until_all_are_rewritten(
    folder: Path,
) -> None:
    async def rotate() -> None:
        storage = await filled(folder)  # not encrypted
        await storage.close()
        async with opened(folder, keys=(KEY,)) as storage:
            await storage.read(read)
            storage.batch.insert_message(key(7), PACKET, arrived_at_ms=1)
            await durable(storage)
        async with opened(folder, keys=(OTHER_KEY, KEY)) as storage:
            storage.batch.insert_message(key(8), PACKET, arrived_at_ms=1)
            await durable(storage)
        use = examine(folder)
        assert [each.key_id for each in use.recorded] == [KEY.id, OTHER_KEY.id]
        assert (use.rows[KEY.id], use.rows[OTHER_KEY.id]) == (1, 1)
        assert use.rows[b""] > 5
        with pytest.raises(KeyMissing):
            async with opened(folder, keys=(OTHER_KEY,)):
                pass

        options = replace(OPTIONS, keys=(OTHER_KEY, KEY))
        done = await rewrite(folder, options, NOW_MS, lambda: None)

        assert done.unreadable == 0
        assert set(examine(folder).rows) == {OTHER_KEY.id}
        assert not files_with_the_secret(folder)
        async with opened(folder, keys=(OTHER_KEY,)) as storage:
            rows = await storage.read(lambda db: messages.page(db, 16))
            assert all(row.is_whole for row in rows)
            assert len(rows) == 4

    asyncio.run(rotate())


def test_encryption_can_be_switched_off_again(folder: Path) -> None:
    async def switch_off() -> None:
        storage = await filled(folder, keys=(KEY,))
        await storage.close()
        await rewrite(folder, replace(OPTIONS, keys=(KEY,), encrypts=False), NOW_MS, lambda: None)
        assert set(examine(folder).rows) == {b""}
        async with opened(folder) as storage:
            await storage.read(read)

    asyncio.run(switch_off())


def test_damaged_rows_stay_damaged_when_all_are_rewritten(folder: Path) -> None:
    async def spoil_and_rewrite() -> None:
        storage = await filled(folder, keys=(KEY,))
        await storage.close()
        with closing(other_connection(folder)) as db:
            db.execute("UPDATE message SET packet = zeroblob(99) WHERE key = ?", (key(1),))
        options = replace(OPTIONS, keys=(OTHER_KEY, KEY))
        assert (await rewrite(folder, options, NOW_MS, lambda: None)).unreadable == 1
        async with opened(folder, keys=(OTHER_KEY, KEY)) as storage:
            row = await storage.read(lambda db: messages.find(db, key(1)))
            assert row is not None
            assert not row.is_whole
            assert await storage.batch.run(
                lambda db: damaged.set_aside(db, "message", key(1), NOW_S)
            )

    asyncio.run(spoil_and_rewrite())


def test_the_check_and_the_rescue_need_the_key_and_open_the_packets(folder: Path) -> None:
    async def write() -> None:
        storage = await filled(folder, keys=(KEY,))
        await storage.close()

    asyncio.run(write())
    with pytest.raises(KeyMissing):
        check.check(folder)
    with pytest.raises(KeyMissing):
        list(Rescue(folder).run(now_s=NOW_S, new_id=OWN_ID))
    assert not folder.with_name("data.repaired").exists()

    kept = list(Rescue(folder, Vault([KEY])).run(now_s=NOW_S, new_id=OWN_ID))

    # The packets of this test are no valid messages, so the rescue sets them aside, decrypted.
    assert {each.packet for each in kept} == {PACKET, PACKET * 2}
    assert not files_with_the_secret(folder.with_name("data.repaired"))


def test_a_key_file_must_be_private_outside_of_the_folder_and_complete(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file = tmp_path / "key"
    for place, text, mode, fault in (
        (folder / "key", KEY.secret.hex(), 0o600, "inside the data folder"),
        (file, KEY.secret.hex(), 0o604, "accessible to all users"),
        (file, KEY.secret.hex()[:-2], 0o600, "64 hexadecimal digits"),
        (file, "secret words", 0o600, "64 hexadecimal digits"),
        (tmp_path / "none", None, 0, "cannot be read"),
    ):
        if text is not None:
            place.write_text(text)
            place.chmod(mode)
        with pytest.raises(KeyFileError, match=fault) as refused:
            read_key(place, folder)
        assert text is None or text not in str(refused.value)
    file.write_text(KEY.secret.hex() + "\n")

    assert read_key(file, folder).id == KEY.id
    assert KEY.secret.hex() not in repr(KEY) + repr(OPTIONS) + repr(replace(OPTIONS, keys=(KEY,)))
