"""Protections against acknowledgments over relays."""

from tests.attack.removals.removal import Removal

_ACKS = "tests/attack/test_acknowledgments.py::"
_OTHER_GUID = (
    "acknowledgments with another GUID than that of the destination, by a program that knows the"
    " sequence, or by a relay of other hosts"
)

REMOVALS = (
    Removal(
        _OTHER_GUID,
        "qmd/transfer/speakers.py",
        "        if not self.speaks_for(connection, acker):\n            return False\n"
        "        if link",
        "        if link",
        f"{_ACKS}test_only_the_relay_of_messages_brings_acknowledgments_of_another_destination",
    ),
    Removal(
        _OTHER_GUID,
        "qmd/transfer/speakers.py",
        "                or _is_carried_by(link, connection)\n",
        "                or True\n",
        f"{_ACKS}test_another_relay_brings_acknowledgments_of_the_known_destination_only",
    ),
    Removal(
        _OTHER_GUID,
        "qmd/transfer/speakers.py",
        "return (used.session.remote_id, used.origin) == there",
        "return used.session.remote_id == there[0]",
        f"{_ACKS}test_another_relay_brings_acknowledgments_of_the_known_destination_only",
    ),
    Removal(
        _OTHER_GUID,
        "qmd/transfer/speakers.py",
        "        if link.connection is connection:\n            return True\n",
        "        if link.connection is connection or _is_carried_by(link, connection):\n"
        "            return True\n",
        f"{_ACKS}test_a_relay_does_not_acknowledge_as_a_destination_over_another_session",
    ),
)
