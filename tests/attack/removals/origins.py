"""Protections of queue managers while the facts about them change."""

from tests.attack.removals.removal import Removal

_CHANGED = "tests/attack/test_changed_origins.py::"

REMOVALS = (
    Removal(
        "a session at the address of a host without a key",
        "qmd/peers/sessions.py",
        "                if not has_kept_origin(connection):",
        "                if False:",
        f"{_CHANGED}test_a_session_without_proof_ends_when_a_key_is_proven_at_its_address",
    ),
    Removal(
        "a session at the address of a host without a key",
        "qmd/peers/origins.py",
        "        self._facts_changed(before.queue_manager)\n",
        "",
        f"{_CHANGED}test_of_two_keys_at_the_address_of_a_host_one_alone_takes_its_place",
    ),
    Removal(
        "a session at the address of a host without a key",
        "qmd/peers/sessions.py",
        "        self._origins.identify(connection, guid, connection.peer_key)\n",
        "",
        f"{_CHANGED}test_a_handshake_that_waits_gives_no_place_that_a_key_has_taken_meanwhile",
    ),
    Removal(
        "a session at the address of a host without a key",
        "qmd/peers/origins.py",
        "        self._facts_changed(guid)\n        return len(chosen)",
        "        return len(chosen)",
        f"{_CHANGED}test_a_session_ends_when_its_address_belongs_to_the_queue_manager_no_more",
    ),
)
