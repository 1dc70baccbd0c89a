"""Protections of the door for SRMP."""

from tests.attack.removals.removal import Removal

_SRMP = "tests/process/test_srmp.py::"
_SRMP_UNIT = "tests/unit/doors/test_srmp.py::"
_ATTACKS = "tests/process/test_srmp_attacks.py::"

REMOVALS = (
    Removal(
        "messages that state the source of another host",
        "qmd/doors/srmp/sources.py",
        "        if self._addresses.get(stated) == address:",
        "        if True:",
        f"{_SRMP}test_a_stranger_cannot_take_a_place_in_the_stream_of_another_host",
    ),
    Removal(
        "a forged receipt for a stream",
        "qmd/doors/srmp/outgoing.py",
        "        if address != client.address and not is_among(address, self._receipts_from):",
        "        if False:",
        f"{_SRMP}test_a_receipt_from_another_address_releases_nothing",
    ),
    Removal(
        "a URL for receipts that leads to another computer",
        "qmd/doors/srmp/program.py",
        "    return address == sender or is_among(address, networks)",
        "    return True",
        f"{_SRMP}test_receipts_go_to_the_address_of_the_sender_only",
    ),
    Removal(
        "a URL for receipts that leads to another computer",
        "storage/stream_file.py",
        "            SELECT name FROM networks ORDER BY streams DESC LIMIT 1",
        "            SELECT name FROM networks ORDER BY streams LIMIT 1",
        "tests/unit/doors/test_srmp_limits.py"
        "::test_streams_of_one_network_displace_each_other_only",
    ),
    Removal(
        "a new stream with each message",
        "qmd/doors/srmp/store.py",
        "results = await loop.run_in_executor(self._thread, self._commit, changes)",
        "results = self._commit(changes)",
        "tests/unit/doors/test_srmp_limits.py"
        "::test_a_disk_that_is_slow_for_a_new_stream_does_not_hold_the_event_loop",
    ),
    Removal(
        "entities, deep or giant XML, odd numbers",
        "qmd/bodies/xml_formatter.py",
        "    parser.StartDoctypeDeclHandler = document_type\n",
        "",
        f"{_SRMP_UNIT}test_a_wrong_envelope_is_refused",
    ),
    Removal(
        "entities, deep or giant XML, odd numbers",
        "qmd/doors/srmp/envelope.py",
        "    if len(data) > ENVELOPE_BYTES_MAX:",
        "    if False:",
        f"{_SRMP_UNIT}test_an_envelope_is_limited_before_it_is_parsed",
    ),
    Removal(
        "entities, deep or giant XML, odd numbers",
        "qmd/doors/srmp/envelope.py",
        "parse_xml(data, ELEMENTS_MAX)",
        "parse_xml(data)",
        f"{_SRMP_UNIT}test_a_wrong_envelope_is_refused",
    ),
    Removal(
        "a list of names with very much white space",
        "qmd/doors/srmp/envelope.py",
        r'r"(?<!\s)\s++(?=https',
        r'r"\s+(?=https',
        f"{_SRMP_UNIT}test_a_list_of_names_takes_time_by_its_length",
    ),
    Removal(
        "a list of names with very much white space",
        "qmd/doors/srmp/mime.py",
        "    if len(content_type) > CONTENT_TYPE_CHARACTERS_MAX:",
        "    if False:",
        f"{_SRMP_UNIT}test_a_long_content_type_is_not_parsed",
    ),
    Removal(
        "envelopes for other hosts or queues",
        "qmd/doors/srmp/incoming.py",
        '        if given.host.casefold() not in {*self._names, _host(request.headers.get("host", ""))}:',
        "        if False:",
        f"{_SRMP}test_the_example_of_the_specification_is_accepted_and_others_are_refused",
    ),
    Removal(
        "a host with a certificate of another authority",
        "qmd/doors/srmp/program.py",
        "        context = ssl.create_default_context("
        "cafile=None if chosen.ca is None else str(chosen.ca))",
        "        context = ssl._create_unverified_context()",
        f"{_SRMP}test_https_checks_the_certificate_of_the_host",
    ),
    Removal(
        "a reader of the network between a host and the door",
        "qmd/doors/srmp/incoming.py",
        "        if token and not is_encrypted:",
        "        if False:",
        "tests/process/test_srmp_rights.py::test_a_token_is_not_accepted_without_encryption",
    ),
    Removal(
        "attachments with wrong lengths",
        "qmd/doors/srmp/mime.py",
        "following = content_end + gap if is_there else -1",
        "following = body.find(delimiter, content_end)",
        "tests/unit/doors/test_srmp.py::test_wrong_parts_are_refused",
    ),
    Removal(
        "attachments with wrong lengths",
        "qmd/doors/srmp/mime.py",
        "        if not (length.isascii() and length.isdigit() and len(length) < 12):",
        "        if False:",
        "tests/unit/doors/test_srmp.py::test_wrong_parts_are_refused",
    ),
    Removal(
        "another local user at the port between daemon and door",
        "qmd/doors/srmp/outgoing.py",
        "        if self._users and user not in self._users:",
        "        if False:",
        "tests/process/test_srmp_gateway.py::test_another_user_gets_no_session_for_a_host",
    ),
    Removal(
        "another local user at the port between daemon and door",
        "qmd/runtime/loopback_user.py",
        " if columns[_STATE] == _ESTABLISHED else None",
        "",
        "tests/process/test_srmp_gateway.py::test_another_user_gets_no_session_for_a_host",
    ),
    Removal(
        "another local user at the port between daemon and door",
        "qmd/doors/srmp/outgoing.py",
        "        if self._users and user not in self._users:",
        "        if self._users and user is not None and user not in self._users:",
        "tests/process/test_srmp_gateway.py::test_another_user_gets_no_session_for_a_host",
    ),
    Removal(
        "a flood of requests that are refused",
        "qmd/runtime/log.py",
        "        if window.lines < self._lines_max:",
        "        if True:",
        f"{_SRMP}test_a_flood_of_refused_requests_is_logged_in_part",
    ),
    Removal(
        "a flood of requests that are refused",
        "qmd/doors/srmp/source.py",
        "key=self.sender.address, now",
        "key=secrets.token_hex(4), now",
        f"{_ATTACKS}test_a_flood_of_receipts_that_are_not_accepted_is_logged_in_part",
    ),
    Removal(
        "a length of a request, or of a part in it",
        "qmd/doors/srmp/mime.py",
        "        following = content_end + gap if is_there else -1\n",
        "        following = content_end + gap if is_there else body.find(delimiter, content_at)\n",
        f"{_ATTACKS}test_a_length_of_a_part_that_is_not_true_delivers_nothing",
    ),
)
