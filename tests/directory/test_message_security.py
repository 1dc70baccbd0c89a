"""Keys, certificates and protected queues in a real Active Directory, used by real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path

import pytest

from protocol import build_user_message, parse_user_message
from protocol.identifiers import NULL_GUID, guid_text
from protocol.security_data import (
    UserCertificate,
    build_user_certificates,
    parse_published_keys,
    parse_user_certificates,
)
from protocol.security_id import security_id_text
from qmd.catalogue import id_of
from qmd.message_security.keyring import signing_keys
from qmd.message_security.signatures import signer_of
from tests.directory.domain import administrator, directory, quoted_password
from tests.directory.domain_controller import DomainController
from tests.directory.hosts import Hosts, address, fails, lookup, public
from tests.process.harness import DEADLETTER
from tests.process.remote import RemoteQueueManager
from tests.unit.message_security.secured import certificate, signed

PASSWORD = "User-P@ss1"


def md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


async def add_user(
    controller: DomainController,
    name: str,
    *,
    registered: list[bytes],
    issued: list[bytes],
    password: str = "",
) -> str:
    """Add a user with certificates, `registered` as MSMQ does; return its SID."""
    records = tuple(UserCertificate(md5(each), NULL_GUID, 0, each) for each in registered)
    attributes: dict[str, object] = {}
    if records:
        attributes["mSMQSignCertificates"] = build_user_certificates(records)
        attributes["mSMQDigests"] = [each.digest for each in records]
    if issued:
        attributes["userCertificate"] = issued
    async with administrator(controller) as domain:
        dn = f"CN={name},{domain.users}"
        if password:
            attributes["unicodePwd"] = quoted_password(password)
        enabled = 512 if password else 514
        await domain.add(dn, "user", sAMAccountName=name, userAccountControl=enabled, **attributes)
        (sid,) = await domain.read(dn, "objectSid")
    text = security_id_text(sid)
    assert text is not None
    return text


def test_a_published_key_is_an_attribute_of_the_queue_manager_and_is_used(hosts: Hosts) -> None:
    name = public(hosts.pc1, "sealed")
    hosts.pc1.cli("queue", "set", ".\\sealed", "--privacy", "body")
    hosts.pc1.cli("key", "init")
    (published,) = hosts.pc1.json("key", "publish")

    found = lookup(hosts.pc2, "pc1")
    queue = lookup(hosts.pc2, "pc1\\sealed")
    plain = hosts.pc2.cli("send", name, "readable", check=False)
    hosts.pc2.cli("send", name, "secret words", "--encrypt")
    hosts.pc2.cli("send", f"DIRECT=OS:{address(hosts.pc1)}\\sealed", "x", "--encrypt", check=False)

    async def attribute() -> tuple[bytes, ...]:
        async with administrator(hosts.controller) as domain:
            return await domain.read(f"CN=msmq,CN=PC1,{domain.computers}", "mSMQEncryptKey")

    assert found["encryption_key"] == published["fingerprint"]
    (value,) = asyncio.run(attribute())
    assert len(parse_published_keys(value)) == 1
    assert (queue["privacy"], queue["authenticate"]) == ("body", False)
    assert id_of("privacy_differs").encode() in plain.stderr
    (message,) = hosts.pc1.wait_for(".\\sealed", 1)
    assert message["encryption_algorithm"] == "aes256"
    assert hosts.pc1.bodies(".\\sealed") == [b"secret words"]


def test_certificates_of_users_in_the_directory_prove_their_messages(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    hosts.pc1.cli("queue", "create", "signed", "--authenticate")
    registered = asyncio.run(
        add_user(hosts.controller, "ann", registered=[certificate("ann")], issued=[])
    )
    issued = asyncio.run(
        add_user(hosts.controller, "ben", registered=[], issued=[certificate("ben")])
    )
    without = asyncio.run(add_user(hosts.controller, "cid", registered=[], issued=[]))
    peer = remote.connect(1801, host=address(hosts.pc1))

    for signer, sid in (
        ("ann", registered),
        ("ben", issued),
        ("ann", issued),  # the certificate of another user
        ("cid", without),
        ("ann", "S-1-5-21-9-9-9-9999"),  # of no user
    ):
        plain = parse_user_message(remote.message("signed", b"x", recoverable=True))
        peer.send(build_user_message(signed(plain, signer, sid=sid)))
    peer.wait_stored()

    found = hosts.pc1.peek("signed")
    assert [each["principals"][0] for each in found] == [f"sid:{registered}", f"sid:{issued}"]
    assert [each["class"] for each in hosts.pc1.peek(DEADLETTER)] == ["nack_bad_signature"] * 3


def test_certificates_of_the_computer_of_a_queue_manager_are_found_by_its_guid(
    controller: DomainController,
) -> None:
    async def run() -> tuple[bytes, ...]:
        async with administrator(controller) as domain:
            computer = await domain.computer("PC7", userCertificate=certificate("pc7"))
            manager = await domain.queue_manager(computer)
            guid = await domain.guid(manager)
        async with directory(controller) as found:
            return await found.certificates(guid_text(guid))

    assert asyncio.run(run()) == (certificate("pc7"),)


def test_a_user_registers_its_certificate_with_its_own_account_and_others_verify_it(
    hosts: Hosts, remote: RemoteQueueManager, tmp_path: Path
) -> None:
    hosts.pc1.cli("queue", "create", "registered", "--authenticate")
    sid = asyncio.run(
        add_user(hosts.controller, "eve", registered=[], issued=[], password=PASSWORD)
    )
    other = asyncio.run(add_user(hosts.controller, "fay", registered=[], issued=[]))
    password = tmp_path / "eve.password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    own = ("--directory", "--account", "eve@msmq.test", "--password-file", str(password))
    files = {name: tmp_path / f"{name}.crt" for name in ("eve", "eve-two")}
    for name, file in files.items():
        file.write_bytes(certificate(name))

    for file in (*files.values(), files["eve"]):
        hosts.pc2.cli("key", "register", sid, str(file), *own)
    denied = fails(hosts.pc2, "key", "register", other, str(files["eve"]), *own)
    by_computer = fails(hosts.pc1, "key", "register", other, str(files["eve"]), "--directory")
    both = hosts.pc1.json("key", "list", "--directory", sid)
    before = asyncio.run(attributes(hosts.controller, "eve"))
    peer = remote.connect(1801, host=address(hosts.pc1))
    for signer, named in (("eve", sid), ("eve-two", sid), ("eve", other)):
        plain = parse_user_message(remote.message("registered", b"x", recoverable=True))
        peer.send(build_user_message(signed(plain, signer, sid=named)))
    peer.wait_stored()
    hosts.pc2.cli("key", "remove", sid, both[0]["fingerprint"], *own)
    after = asyncio.run(attributes(hosts.controller, "eve"))

    assert id_of("directory_denied") in denied
    assert id_of("directory_denied") in by_computer
    records = parse_user_certificates(before[0])
    assert [each.certificate for each in records] == [certificate("eve"), certificate("eve-two")]
    assert [each.digest for each in records] == [md5(each.certificate) for each in records]
    assert set(before[1]) == {each.digest for each in records}
    assert [each["principals"][0] for each in hosts.pc1.peek("registered")] == [f"sid:{sid}"] * 2
    (left,) = parse_user_certificates(after[0])
    assert left == records[1]
    assert after[1] == (left.digest,)


def test_a_queue_manager_registers_the_key_with_which_it_signs(
    hosts: Hosts, tmp_path: Path
) -> None:
    (status,) = hosts.pc1.json("status")
    guid = status["queue_manager"]
    file = tmp_path / "pc1.crt"
    file.write_bytes(certificate("pc1"))

    async def values(*names: str) -> list[tuple[bytes, ...]]:
        async with administrator(hosts.controller) as domain:
            computer = f"CN=PC1,{domain.computers}"
            places = [f"CN=msmq,{computer}" if "Key" in each else computer for each in names]
            return [await domain.read(*each) for each in zip(places, names, strict=True)]

    hosts.pc1.cli("key", "register", guid, str(file), "--directory")
    (listed,) = hosts.pc2.json("key", "list", "--directory", guid)
    registered, keys = asyncio.run(values("mSMQSignCertificates", "mSMQSignKey"))
    hosts.pc1.cli("key", "remove", guid, listed["fingerprint"], "--directory")
    left = asyncio.run(values("mSMQSignCertificates", "mSMQDigests", "mSMQSignKey"))

    assert [each.certificate for each in parse_user_certificates(registered[0])] == [
        certificate("pc1")
    ]
    (key,) = parse_published_keys(keys[0])
    assert key.key.fingerprint == signer_of(certificate("pc1")).key_fingerprint
    assert left == [(), (), ()]


def test_a_key_that_the_directory_has_of_a_queue_manager_proves_its_signatures(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    hosts.pc1.cli("queue", "create", "from-managers", "--authenticate")

    async def add() -> bytes:
        async with administrator(hosts.controller) as domain:
            computer = await domain.computer("PC8")
            manager = await domain.queue_manager(
                computer, mSMQSignKey=signing_keys([certificate("pc8")])
            )
            return await domain.guid(manager)

    guid = asyncio.run(add())
    peer = remote.connect(1801, host=address(hosts.pc1))
    for signer in ("pc8", "another"):
        plain = parse_user_message(remote.message("from-managers", b"x", recoverable=True))
        peer.send(build_user_message(signed(plain, signer, queue_manager=guid)))
    peer.wait_stored()

    (found,) = hosts.pc1.peek("from-managers")
    assert found["principals"] == [f"signer:{signer_of(certificate('pc8')).fingerprint}"]


async def attributes(controller: DomainController, name: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the certificates of a user as they are stored, and their digests."""
    async with administrator(controller) as domain:
        dn = f"CN={name},{domain.users}"
        (stored,) = await domain.read(dn, "mSMQSignCertificates")
        return stored, await domain.read(dn, "mSMQDigests")


@pytest.fixture
def remote() -> contextlib.AbstractContextManager[RemoteQueueManager]:
    with RemoteQueueManager() as found:
        yield found
