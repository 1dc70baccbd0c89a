"""Proofs of identity in the handshake: forged, replayed, reflected and damaged ones all fail."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from qmd.core.handshake import NOT_PROVEN
from qmd.core.identity_proof import ADDRESS_BYTES, Prover
from qmd.core.peer_instance import FILL, Instance, from_padding
from qmd.core.session import Session, SessionSettings, SessionState
from qmd.runtime.identity_key import IdentityKey, verify

ALICE, BOB, MALLORY = b"A" * 16, b"B" * 16, b"M" * 16
KEYS = {guid: IdentityKey(guid * 2) for guid in (ALICE, BOB, MALLORY)}
BOBS_ADDRESS = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 2)) + b"\x07\x09"
CLIENT_AT, SERVER_AT, PADDING_AT = 20, 36, 60  # in an EstablishConnection packet, [MS-MQQB] 2.2.3
PACKET_BYTES = 572
LAYOUT = struct.Struct(">12s32s32s64s")


@dataclass
class End:
    """One end of a handshake, with the key of `holder`."""

    guid: bytes
    initiator: bool = False
    holder: bytes = b""
    nonce: bytes = b""
    dials: bytes = BOBS_ADDRESS
    has_key: bool = True
    hindrance: str | None = None
    judged: list[tuple[bytes, Instance | None, bytes | None]] = field(default_factory=list)
    found_key: int = 0  # how often it has looked for its own key

    def __post_init__(self) -> None:
        key = KEYS[self.holder or self.guid]
        self.session = Session(
            initiator=self.initiator,
            own_id=self.guid,
            settings=SessionSettings(),
            now=0.0,
            instance=Instance(3, self.guid),
            judge=self._judge,
            prover=Prover(
                self._find_public,
                key.sign,
                verify,
                self.nonce or self.guid * 2,
                self.dials,
                lambda address: address == BOBS_ADDRESS,
            )
            if self.has_key
            else None,
        )

    def _find_public(self) -> bytes:
        self.found_key += 1
        return KEYS[self.holder or self.guid].public

    def _judge(self, guid: bytes, met: Instance | None, key: bytes | None) -> str | None:
        self.judged.append((guid, met, key))
        return self.hindrance

    def take(self, data: bytes) -> bytes:
        """Process packets; return those that it sends."""
        packets = []
        while data:
            (size,) = struct.unpack_from("<L", data, 8)
            packets.append(data[:size])
            data = data[size:]
        self.session.receive(packets, 0.0)
        return self.session.data_to_send()

    def begin(self) -> bytes:
        self.session.start(0.0)
        return self.session.data_to_send()

    @property
    def key(self) -> bytes | None:
        return self.session.peer_key

    @property
    def is_open(self) -> bool:
        return self.session.state is SessionState.OPEN

    @property
    def reason(self) -> str | None:
        return self.session.closed_reason


def alice(**changes) -> End:
    return End(ALICE, initiator=True, **changes)


def bob(**changes) -> End:
    return End(BOB, **changes)


def meet(a: End, b: End, change: Callable[[int, bytes], bytes] = lambda _, data: data) -> None:
    """Carry the packets of both; `change(step, data)` is a program on the path."""
    data = change(0, a.begin())
    for step in (1, 3):
        data = change(step, b.take(data))
        data = change(step + 1, a.take(data))


def test_an_acceptor_finds_its_key_only_to_answer_a_challenge() -> None:
    a, b = alice(), bob()
    a.begin()

    assert (a.found_key, b.found_key) == (1, 0)


def with_byte(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def with_guid(packet: bytes, at: int, guid: bytes) -> bytes:
    return packet[:at] + guid + packet[at + 16 :]


def test_both_ends_prove_their_keys_and_judge_once_with_them() -> None:
    a, b = alice(), bob()

    meet(a, b)

    assert a.is_open
    assert b.is_open
    assert (a.key, b.key) == (KEYS[BOB].public, KEYS[ALICE].public)
    assert a.judged == [(BOB, Instance(3, BOB), KEYS[BOB].public)]
    assert b.judged == [(ALICE, Instance(3, ALICE), KEYS[ALICE].public)]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_without_a_key_at_one_end_there_is_a_session_and_no_proof(
    first: bool, second: bool
) -> None:
    a, b = alice(has_key=first), bob(has_key=second)
    sent: list[int] = []

    meet(a, b, lambda step, data: sent.append(len(data)) or data)

    assert a.is_open
    assert b.is_open
    assert (a.key, b.key) == (None, None)
    assert sent == [572, 572, 32, 32, 0]  # no packet that other queue managers do not know
    assert a.judged == [(BOB, Instance(3, BOB), None)]


def test_a_queue_manager_that_is_not_qmd_gets_the_bytes_of_the_specification() -> None:
    b = bob()
    request = alice().begin()

    response = b.take(request[:PADDING_AT] + FILL)

    assert response[PADDING_AT:] == FILL


def test_the_third_packet_is_sent_only_after_a_proof() -> None:
    a, b = alice(), bob()
    sizes: list[int] = []

    meet(a, b, lambda step, data: sizes.append(len(data)) or data)

    assert sizes == [572, 572, 572 + 32, 32, 0]


def test_the_instance_is_still_found_by_earlier_versions() -> None:
    a, b = alice(), bob()
    request = a.begin()
    response = b.take(request)

    assert from_padding(request[PADDING_AT:]) == Instance(3, ALICE)
    assert from_padding(response[PADDING_AT:]) == Instance(3, BOB)


@pytest.mark.parametrize("at", [0, 12, 43, 44, 75, 76, 93, 100, 475, 511])
def test_a_request_that_was_changed_on_its_way_proves_nothing(at: int) -> None:
    a, b = alice(), bob()

    meet(a, b, lambda step, data: with_byte(data, PADDING_AT + at) if step == 0 else data)

    assert a.key is None
    assert b.key is None


@pytest.mark.parametrize("at", [0, 12, 43, 44, 75, 76, 139, 200, 475, 511])
def test_a_response_that_was_changed_on_its_way_proves_nothing(at: int) -> None:
    a, b = alice(), bob()

    meet(a, b, lambda step, data: with_byte(data, PADDING_AT + at) if step == 1 else data)

    assert a.key is None
    assert b.key is None
    if at:  # otherwise it is the response of a queue manager without a key
        assert a.reason == NOT_PROVEN


@pytest.mark.parametrize("at", [*range(12), 12, 40, 75])
def test_a_proof_that_was_changed_on_its_way_ends_the_session(at: int) -> None:
    a, b = alice(), bob()

    meet(a, b, lambda step, data: with_byte(data, PADDING_AT + at) if step == 2 else data)

    assert b.key is None
    assert b.reason == NOT_PROVEN


@pytest.mark.parametrize("at", [24, 40])
def test_a_proof_that_states_other_guids_ends_the_session(at: int) -> None:
    a, b = alice(), bob()

    meet(a, b, lambda step, data: with_byte(data, at) if step == 2 else data)

    assert b.key is None
    assert not b.is_open


def test_the_guid_of_another_initiator_cannot_be_put_into_a_request() -> None:
    """Mallory passes on Alice's request under its own GUID, and the answer under that of Alice."""
    a, b = alice(), bob()

    meet(
        a,
        b,
        lambda step, data: (
            with_guid(data, CLIENT_AT, MALLORY if step == 0 else ALICE) if step < 2 else data
        ),
    )

    assert (a.key, b.key) == (None, None)
    assert a.reason == NOT_PROVEN


def test_a_queue_manager_with_another_key_proves_only_that_key() -> None:
    """Mallory states the GUID of Alice: the key shows that it is another origin."""
    a, b = alice(holder=MALLORY), bob()

    meet(a, b)

    assert b.key == KEYS[MALLORY].public


def test_a_public_key_without_its_private_key_proves_nothing() -> None:
    a, b = alice(holder=MALLORY), bob()
    alices = KEYS[ALICE].public

    def change(step: int, data: bytes) -> bytes:
        at = PADDING_AT + 44
        return data[:at] + alices + data[at + 32 :] if step == 0 else data

    meet(a, b, change)
    # Its own proof over the request that was really sent.
    assert b.key is None


def test_a_recorded_handshake_cannot_be_repeated() -> None:
    said: dict[int, bytes] = {}
    meet(alice(), bob(), lambda step, data: said.setdefault(step, data))

    later = bob(nonce=b"n" * 32)
    later.take(said[0])
    later.take(said[2])

    assert later.key is None
    assert later.reason == NOT_PROVEN


def test_a_recorded_response_is_no_answer_to_a_new_challenge() -> None:
    said: dict[int, bytes] = {}
    meet(alice(), bob(), lambda step, data: said.setdefault(step, data))

    later = alice(nonce=b"n" * 32)
    later.begin()
    later.take(said[1])

    assert later.key is None
    assert later.reason == NOT_PROVEN


@pytest.mark.parametrize("stated", [ALICE, MALLORY])
def test_a_challenge_cannot_be_reflected_to_its_own_sender(stated: bytes) -> None:
    """Mallory has Alice answer its own challenge, and returns that under the GUIDs of its choice.

    The GUIDs of the packet are no protection: Mallory writes them. Those in the signature are.
    """
    a = alice()
    challenge = a.begin()
    also_alice = End(ALICE, nonce=b"n" * 32)
    answered = also_alice.take(with_guid(challenge, CLIENT_AT, MALLORY))
    assert not also_alice.reason, "it has answered"

    a.take(with_guid(with_guid(answered, CLIENT_AT, ALICE), SERVER_AT, stated))

    assert a.key is None
    assert a.reason == NOT_PROVEN


def test_a_signature_of_the_acceptor_is_none_of_an_initiator() -> None:
    a, b = alice(), bob()
    request = a.begin()
    response = b.take(request)
    _, _, _, signature = LAYOUT.unpack_from(response, PADDING_AT)
    proof = a.take(response)[:PACKET_BYTES]

    b.take(proof[: PADDING_AT + 12] + signature + proof[PADDING_AT + 76 :])

    assert b.reason == NOT_PROVEN


def test_a_queue_manager_that_is_dialled_cannot_pass_the_handshake_on() -> None:
    """Alice dials Mallory, which hands the packets to Bob and back, unchanged or not."""
    mallorys_address = BOBS_ADDRESS[:-3] + b"\x63\x07\x09"
    a, b = alice(dials=mallorys_address), bob()

    meet(a, b)

    assert (a.key, b.key) == (None, None)

    a, b = alice(dials=mallorys_address, nonce=b"o" * 32), bob()

    def change(step: int, data: bytes) -> bytes:
        at = PADDING_AT + 76
        return data[:at] + BOBS_ADDRESS + data[at + ADDRESS_BYTES :] if step == 0 else data

    meet(a, b, change)

    assert (a.key, b.key) == (None, None)
    assert a.reason == NOT_PROVEN


def test_a_proof_that_was_not_asked_for_ends_the_session() -> None:
    a, b = alice(), bob()
    sent: dict[int, bytes] = {}
    meet(a, b, lambda step, data: sent.setdefault(step, data))
    other = bob(has_key=False)
    other.take(sent[0])

    other.take(sent[2][:PACKET_BYTES])

    assert "a connection request" in (other.reason or "")


def test_a_second_proof_ends_the_session() -> None:
    a, b = alice(), bob()
    response = b.take(a.begin())
    proof = a.take(response)[:PACKET_BYTES]
    b.take(proof)

    b.take(proof)

    assert not b.is_open
    assert b.session.state is SessionState.CLOSED


def test_a_peer_that_keeps_its_proof_back_gets_a_session_without_one() -> None:
    a, b = alice(), bob()

    meet(a, b, lambda step, data: data[PACKET_BYTES:] if step == 2 else data)

    assert b.is_open
    assert b.key is None
    assert b.judged == [(ALICE, Instance(3, ALICE), None)]


def test_a_judge_that_refuses_the_proven_key_ends_the_session_at_both_ends() -> None:
    a, b = alice(), bob(hindrance="it is a clone")

    meet(a, b)

    assert b.reason == "refused: it is a clone"
    assert a.session.refused_as_another
    assert not a.is_open


def test_a_peer_without_a_key_is_refused_at_once() -> None:
    a, b = alice(has_key=False), bob(hindrance="it is a clone")

    meet(a, b)

    assert a.session.refused_as_another
    assert b.judged == [(ALICE, Instance(3, ALICE), None)]
