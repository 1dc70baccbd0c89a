"""Protections of the audit log, of bodies that are decoded, of what is stored, of dependencies."""

from tests.attack.removals.removal import Change, Removal

_NRBF = "tests/unit/bodies/test_nrbf.py::"
_CONTENT = "tests/unit/bodies/test_content.py::"
_VAULT = "tests/unit/storage/test_vault.py::"
_BACKUP = "tests/unit/storage/test_backup.py::"
_LOG = "tests/process/test_audit_log.py::"

REMOVALS = (
    Removal(
        "edit the audit log",
        "storage/tables/audit.py",
        'hashlib.sha256(before.digest + number.to_bytes(8, "big") + entry.encode())',
        'hashlib.sha256(number.to_bytes(8, "big"))',
        f"{_LOG}test_a_changed_removed_or_replaced_entry_is_found",
        (
            Change(
                "qmd/control_protocol/audit.py",
                'hashlib.sha256(before + number.to_bytes(8, "big") + entry.encode())',
                'hashlib.sha256(number.to_bytes(8, "big"))',
            ),
        ),
    ),
    Removal(
        "write the log until old entries are dropped",
        "storage/tables/audit.py",
        "        (last.number, last.digest),\n",
        "        (last.number, NO_DIGEST),\n",
        "tests/unit/storage/test_audit.py::test_dropped_entries_leave_an_anchor_and_an_entry",
    ),
    Removal(
        "false lengths, deep or broken objects",
        "qmd/bodies/nrbf.py",
        "        if depth > DEPTH_MAX:",
        "        if False:",
        f"{_NRBF}test_a_hostile_stream_is_refused",
    ),
    Removal(
        "false lengths, deep or broken objects",
        "qmd/bodies/nrbf.py",
        "        if self._elements > ELEMENTS_MAX:",
        "        if False:",
        f"{_NRBF}test_nulls_of_many_arrays_are_limited",
    ),
    Removal(
        "an array where .NET reads a null",
        "qmd/bodies/nrbf.py",
        "        if kind in _ARRAYS:  # 2.7; .NET would read a null",
        "        if False:",
        f"{_NRBF}test_a_hostile_stream_is_refused",
    ),
    Removal(
        "a document type in XML, in a body or in headers",
        "qmd/bodies/xml_formatter.py",
        "    parser.StartDoctypeDeclHandler = document_type\n",
        "",
        f"{_CONTENT}test_xml_that_is_refused",
    ),
    Removal(
        "a long namespace of thousands of elements",
        "qmd/bodies/xml_formatter.py",
        "    parser.StartNamespaceDeclHandler = namespace\n",
        "",
        f"{_CONTENT}test_xml_that_is_refused",
    ),
    Removal(
        "a long namespace of thousands of elements",
        "qmd/bodies/xml_formatter.py",
        "            if characters > NAMES_CHARACTERS_MAX:",
        "            if False:",
        f"{_CONTENT}test_xml_that_is_refused",
    ),
    Removal(
        "reading the disk, or a backup of the data folder",
        "storage/vault.py",
        "        sealed = self._cipher.encrypt(nonce, packet[readable:], covered)",
        "        sealed = bytes(packet[readable:]) + bytes(TAG_BYTES)",
        f"{_VAULT}test_no_byte_of_a_body_is_in_a_file_of_the_folder",
    ),
    Removal(
        "reading the disk, or a backup of the data folder",
        "storage/vault.py",
        "        number = next(self._numbers)\n        if number >= NUMBERS_MAX:",
        "        number = 0\n        if number >= NUMBERS_MAX:",
        f"{_VAULT}test_no_nonce_is_used_twice",
    ),
    Removal(
        "steals a backup that `qmd backup` has made",
        "storage/backup/archive.py",
        '        return self._cipher.encrypt(b"\\0\\0\\0\\0" + head, plain, self._file_id + head)',
        "        return plain",
        f"{_BACKUP}test_an_encrypted_backup_needs_its_key",
        (
            Change(
                "storage/backup/archive.py",
                '                record = self._cipher.decrypt(b"\\0\\0\\0\\0" + head, record,'
                " self._file_id + head)",
                "                pass",
            ),
        ),
    ),
    Removal(
        "changing or exchanging encrypted rows",
        "storage/vault.py",
        "                return Opened(packet, crc32(packet) ^ 1)\n            packet = head + rest",
        "                return Opened(packet, crc32(packet))\n            packet = head + rest",
        f"{_VAULT}test_a_changed_byte_anywhere_is_noticed",
    ),
    Removal(
        "changing or exchanging encrypted rows",
        "storage/vault.py",
        "_PLACE.pack(code, key, part_id or 0) + head\n        sealed",
        "_PLACE.pack(code, 0, 0) + head\n        sealed",
        f"{_VAULT}test_a_row_in_the_place_of_another_is_noticed",
    ),
    Removal(
        "reading the token file",
        "qmd/access/tokens.py",
        "    return hashlib.sha256(token.encode()).hexdigest()",
        "    return f'{token:_<64}'[:64]",
        "tests/process/test_remote_control.py::test_a_token_is_in_no_output",
    ),
    Removal(
        "a fault in the daemon or a library",
        "deploy/qmd.service",
        "ProtectSystem=strict\n",
        "",
        "tests/unit/test_deploy.py::test_no_protection_of_the_sandbox_is_missing",
    ),
    Removal(
        "a known vulnerability in a locked version",
        "Makefile",
        "-m release.advisories",
        "-m release.version",
        "tests/unit/test_advisories.py::test_the_checks_of_a_change_include_the_audit",
    ),
    Removal(
        "deny a change",
        "qmd/events/audit_log.py",
        '        text = _text({"at_ms": self._now_ms(), **facts})\n',
        '        if facts["kind"] == "request":\n            return\n        text = _text({"at_ms": self._now_ms(), **facts})\n',
        "tests/process/test_audit_log.py::test_a_request_that_was_answered_is_recorded_although_the_daemon_is_killed",
    ),
    Removal(
        "a few hundred bytes whose objects refer to each other",
        "qmd/bodies/content.py",
        "        if self._repeated > REPEATED_MAX:",
        "        if False:",
        "tests/unit/bodies/test_nrbf.py::test_a_long_text_that_is_written_often_is_limited",
    ),
    Removal(
        "a return address that is no address",
        "qmd/bodies/bus_headers.py",
        " or not _HOST.fullmatch(host) or not _QUEUE.fullmatch(queue):",
        ":",
        "tests/unit/bodies/test_bus_headers.py::test_the_queue_of_an_address",
    ),
    Removal(
        "changes or shortens a backup",
        "storage/backup/archive.py",
        "        if digest_of(data) != piece.digest:",
        "        if False:",
        "tests/unit/storage/test_backup.py::test_a_piece_that_was_changed_and_packed_anew_is_found",
    ),
    Removal(
        "runs the original of a restored queue manager",
        "qmd/core/peer_instance.py",
        "    return Verdict.NEWER if met.starts > known.starts else Verdict.ANOTHER",
        "    return Verdict.NEWER",
        "tests/simulation/test_restores.py::test_a_clone_that_was_left_running_is_refused_and_doubles_nothing",
    ),
    Removal(
        "a start with a wrong key, or none",
        "storage/tables/sealing.py",
        "    if missing:\n        names",
        "    if False:\n        names",
        "tests/unit/storage/test_vault.py::test_without_its_key_a_folder_is_refused_unchanged",
    ),
    Removal(
        "a changed file at a package index",
        "requirements.lock",
        "    --hash=sha256:043e0bd78d32888c0a9ca90fc788b38796843360c855a7262a532813133a0650",
        "    --hash=md5:0",
        "tests/unit/test_project.py::test_a_lock_holds_exact_versions_with_hashes_and_nothing_else",
    ),
    Removal(
        "a forged backup that names files elsewhere",
        "storage/backup/restoration.py",
        "        if path.parent != backup.path.parent:",
        "        if False:",
        "tests/unit/storage/test_backup.py::test_a_backup_names_no_file_outside_of_its_folder",
    ),
    Removal(
        "a long namespace of thousands of elements, a duration",
        "qmd/bodies/xml_formatter.py",
        r"{1,14}(?:\.[0-9]{1,30})?)S",
        r"{1,14}(?:e[0-9]+)?)S",
        f"{_CONTENT}test_xml_that_is_refused",
    ),
)
