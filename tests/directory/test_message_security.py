"""Keys, certificates and protected queues in a real Active Directory, used by real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import pytest

from protocol import build_user_message, parse_user_message
from protocol.identifiers import NULL_GUID, guid_text
from protocol.security_data import (
    UserCertificate,
    build_user_certificates,
    parse_published_keys,
)
from protocol.security_id import security_id_text
from qmd.catalogue import id_of
from tests.directory.domain import administrator, directory
from tests.directory.domain_controller import DomainController
from tests.directory.hosts import Hosts, address, lookup, public
from tests.process.harness import DEADLETTER
from tests.process.remote import RemoteQueueManager
from tests.unit.message_security.secured import certificate, signed


def md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


async def add_user(
    controller: DomainController, name: str, *, registered: list[bytes], issued: list[bytes]
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
        await domain.add(dn, "user", sAMAccountName=name, userAccountControl=514, **attributes)
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


@pytest.fixture
def remote() -> contextlib.AbstractContextManager[RemoteQueueManager]:
    with RemoteQueueManager() as found:
        yield found
