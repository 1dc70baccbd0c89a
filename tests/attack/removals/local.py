"""Protections against another local user, and an application with the group of the socket."""

from tests.attack.removals.removal import Change, Removal

_USERS = "tests/integration/control/test_local_users.py::"
_NAMES = "tests/integration/directory/test_names_and_rights.py::"
_ACKNOWLEDGED = "tests/integration/control/test_large_acknowledged.py::"
_RECEIPTS = "tests/integration/control/test_large_receipts.py::"
_LARGE = "tests/integration/control/test_large_requests.py::"
_PLACES = "tests/attack/test_client_places.py::"
_SOCKET = "tests/process/test_control_socket.py::"
_HOSTILE = "tests/process/test_hostile_names.py::"

REMOVALS = (
    Removal(
        "a queue with a name that only one of two comparisons takes for that of another queue",
        "protocol/names/path_name.py",
        "        and lower == character.casefold() == character.upper().lower()\n",
        "",
        "tests/unit/protocol/test_format_name.py"
        "::test_each_character_beyond_ascii_compares_alone_and_in_one_way",
    ),
    Removal(
        "the queue of a bridge, made before the first start",
        "qmd/bridge/inward.py",
        '    if shown["owner"] not in (None, own["principal"], *ADMINISTRATORS):',
        "    if False:",
        "tests/bridge/test_position.py::test_a_queue_that_another_user_made_first_is_not_trusted",
    ),
    Removal(
        "requests of every kind about queues of others",
        "qmd/control/server.py",
        "        if not self.rights.are_all:\n            request = self._admitted(request)\n",
        "",
        "tests/attack/test_access.py::test_no_verb_of_another_local_user_has_an_effect",
    ),
    Removal(
        "requests of every kind about queues of others",
        "qmd/access/rights.py",
        "        self._checks.require(self.caller, demand, things, verb)",
        "        pass",
        f"{_USERS}test_no_verb_of_another_user_has_an_effect_without_the_right",
    ),
    Removal(
        "a guessed id of a transaction, or of a message",
        "qmd/access/rights.py",
        "            marked[field] = value + self._mark",
        "            marked[field] = value",
        f"{_USERS}test_outcomes_and_transactions_of_two_users_are_independent",
    ),
    Removal(
        "requests about dead-letter queues, journals",
        "qmd/core/access.py",
        "    Kind.DEAD_LETTER: frozenset({GET_PERMISSIONS}),",
        "    Kind.DEAD_LETTER: frozenset({GET_PERMISSIONS, PEEK, RECEIVE}),",
        f"{_USERS}test_dead_letters_and_internal_queues_are_closed_to_other_users",
    ),
    Removal(
        "the number or the name of an account that was removed",
        "qmd/core/access.py",
        "    if principal in caller.proven:\n        return True\n    return principal.kind",
        "    if any((each.kind, each.number) == (principal.kind, principal.number)\n"
        "           for each in caller.proven):\n        return True\n    return principal.kind",
        "tests/unit/core/test_access.py"
        "::test_an_id_that_was_given_to_another_account_gets_no_grant_of_the_old_one",
    ),
    Removal(
        "a link in the place of the token file",
        "qmd/access/tokens.py",
        "    if not (stat.S_ISREG(owner.st_mode) or stat.S_ISDIR(owner.st_mode)):",
        "    if False:",
        "tests/unit/access/test_tokens.py::test_a_link_in_place_of_the_token_file_is_not_followed",
    ),
    Removal(
        "a link in the place of the token file",
        "qmd/runtime/replaced_file.py",
        "flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC",
        "flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC",
        "tests/unit/access/test_tokens.py"
        "::test_a_link_in_place_of_the_temporary_file_is_not_followed",
    ),
    Removal(
        "requests with tens of thousands of messages that are acknowledged",
        "qmd/bulk/prepared_messages.py",
        "    return delivery == EXPRESS and not (",
        "    return False and not (",
        "tests/integration/control/test_large_acknowledged.py::test_others_are_served_while_express_messages_leave",
    ),
    Removal(
        "requests with tens of thousands of messages that go to several queues",
        "qmd/bulk/large_send.py",
        "        if prepared.copies > ONE_BY_ONE_MAX and not prepared.is_express:",
        "        if False:",
        "tests/integration/control/test_large_columns.py"
        "::test_no_message_of_a_large_request_is_put_into_the_batch_alone",
    ),
    Removal(
        "a purge of a queue with tens of thousands of express messages",
        "qmd/operations/purge.py",
        "        if len(rows) > piece.limit:  # the disk has no part in the number of express messages",
        "        if False:",
        "tests/integration/operations/test_purge.py::test_many_express_messages_are_purged_in_pieces",
    ),
    Removal(
        "requests with tens of thousands of messages that are acknowledged",
        "qmd/bulk/arrival_answers.py",
        "        return bool(new.acknowledge & POSITIVE_ARRIVAL) and isinstance(route, LocalQueue)",
        "        return False",
        f"{_ACKNOWLEDGED}test_acknowledgments_are_made_beside_the_messages_and_are_as_usual",
    ),
    Removal(
        "requests with tens of thousands of messages that are acknowledged",
        "qmd/bulk/prepared_messages.py",
        "        return self._unstored == len(self._messages)",
        "        return False",
        f"{_ACKNOWLEDGED}test_others_are_served_while_express_messages_of_a_large_request_are_sent",
    ),
    Removal(
        "a queue with the name of an alias or a list",
        "qmd/directory/spelling.py",
        "    return any(map(_is_entry, _split(text)[1])) or any(",
        "    return any(",
        f"{_NAMES}test_a_queue_with_the_name_of_an_alias_gives_no_rights_on_its_queue",
    ),
    Removal(
        "a queue with the name of an alias or a list",
        "qmd/naming/destinations.py",
        "        if path.queue.lower().startswith(PREFIXES):",
        "        if False:",
        f"{_NAMES}test_a_queue_with_the_name_of_an_alias_gives_no_rights_on_its_queue",
    ),
    Removal(
        "a queue with the name of an alias or a list",
        "qmd/directory/spelling.py",
        '        isinstance(each, DirectName) and not each.private and each.host != "."\n',
        "        False\n",
        f"{_NAMES}test_another_name_of_this_computer_in_the_directory_gives_no_rights",
    ),
    Removal(
        "delayed messages to an own queue",
        "qmd/maintenance/delayed_release.py",
        "                self._check_queue(route, row.owner, row.sent_at_ms)",
        "                pass",
        "tests/integration/control/test_delayed_rights.py"
        "::test_a_delayed_message_does_not_enter_a_closed_queue_of_the_same_name",
    ),
    Removal(
        "lookup ids, counted through",
        "qmd/history/message_lookup.py",
        "        if _is_lookup_id(text):\n            _require_queue(rights, queue)\n",
        "",
        f"{_USERS}test_a_user_sees_only_why_of_messages_that_it_may_peek_at",
    ),
    Removal(
        "a request that waits for messages without end",
        "qmd/control/waiting.py",
        "        if not result or components.access_register.generation == self.generation:",
        "        if True:",
        "tests/integration/control/test_rights_while_waiting.py"
        "::test_a_waiting_request_gets_nothing_after_its_user_has_lost_the_right",
    ),
    Removal(
        "rights that are imported while others change",
        "qmd/access/register.py",
        "        async with self._turn:\n            before = {} if replace else self._entries\n",
        "        before = {} if replace else dict(self._entries)\n        async with self._turn:\n",
        "tests/integration/control/test_imported_rights.py"
        "::test_a_denial_that_is_made_during_an_import_stays",
    ),
    Removal(
        "rights that are imported while others change",
        "qmd/access/register.py",
        "            gone = {key_of(queue) for queue in queues if queue.deleted}",
        "            gone = set()",
        "tests/integration/control/test_imported_rights.py"
        "::test_a_queue_that_is_made_again_during_an_import_gets_no_rights_of_the_old_one",
        (
            Change(
                "qmd/access/register.py",
                "                if not queue.deleted:\n"
                "                    self.owners.set(queue.id, owner)\n            self",
                "                self.owners.set(queue.id, owner)\n            self",
            ),
        ),
    ),
    Removal(
        "rights that are imported while others change",
        "qmd/access/register.py",
        "                if len(same) > ENTRIES_MAX:",
        "                if False:",
        "tests/integration/control/test_imported_rights.py"
        "::test_an_import_keeps_the_limit_of_entries",
    ),
    Removal(
        "links in a folder of the daemon's user",
        "qmd/tls/pins.py",
        "            os.fchown(descriptor, found.st_uid, found.st_gid)\n    fresh.rename(path)\n",
        "            fresh.rename(path)\n            os.chown(path, found.st_uid, found.st_gid)\n",
        "tests/unit/tls/test_pins.py::test_a_link_in_place_of_a_written_file_is_not_given_away",
    ),
    Removal(
        "links in a folder of the daemon's user",
        "qmd/tls/pins.py",
        "    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW\n    lock",
        "    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC\n    lock",
        "tests/unit/tls/test_pins.py::test_a_link_in_place_of_the_lock_is_not_followed",
    ),
    Removal(
        "links in a folder of the daemon's user",
        "storage/engine/disk.py",
        "        if owner := above.stat().st_uid:",
        "        if False and (owner := above.stat().st_uid):",
        "tests/unit/storage/test_backup.py"
        "::test_root_makes_no_folder_where_another_user_can_exchange_it",
    ),
    Removal(
        "a control group with the name of a service",
        "qmd/access/local_users.py",
        '    unit = next((part for part in parts[2:] if not part.endswith(".slice")), "")',
        '    unit = next((part for part in reversed(parts) if part.endswith(".service")), "")',
        "tests/unit/access/test_services.py::test_groups_inside_of_a_delegated_one_are_no_services",
    ),
    Removal(
        "frames that are no requests, or giant ones",
        "qmd/control/server.py",
        "        except msgspec.DecodeError as error:\n            self._refuse(",
        "        except ZeroDivisionError as error:\n            self._refuse(",
        f"{_SOCKET}test_a_frame_that_is_no_request_is_answered_and_the_connection_goes_on",
    ),
    Removal(
        "requests as fast as possible",
        "qmd/control/accounts.py",
        "        return self._work_left(now) > BUSY_S and self._accounts.has_another(self, now)",
        "        return False",
        "tests/unit/control/test_accounts.py"
        "::test_it_stays_behind_as_long_as_it_uses_more_than_its_share",
    ),
    Removal(
        "requests with tens of thousands of messages",
        "qmd/control/server.py",
        "        if (large := request_in_parts(frame)) is not None:",
        "        if (large := None) is not None:",
        f"{_LARGE}test_others_are_served_while_a_large_request_is_prepared",
    ),
    Removal(
        "requests with tens of thousands of messages",
        "qmd/control/message_handlers.py",
        "    large = transactions.with_many(request.transaction, connection, MANY)",
        "    large = None",
        f"{_LARGE}test_others_are_served_while_a_large_transaction_commits",
    ),
    Removal(
        "requests with tens of thousands of messages",
        "qmd/bulk/prepared_messages.py",
        "            prepared=self._packets,\n",
        "",
        f"{_LARGE}test_packets_of_unusual_messages_are_made_in_parts",
    ),
    *(
        Removal(
            "ends of tens of thousands of messages",
            file,
            old,
            new,
            f"tests/integration/control/test_large_ends.py::test_{test}",
        )
        for file, old, new, test in (
            (
                "qmd/control/message_handlers.py",
                "    if len(request.lookup_ids) > AT_ONCE:\n        reason = checked",
                "    if False:\n        reason = checked",
                "others_are_served_while_many_messages_are_rejected",
            ),
            (
                "qmd/operations/receive.py",
                "            if len(mine) > AT_ONCE:\n                self._large_ends.give_back_later",
                "            if False:\n                self._large_ends.give_back_later",
                "the_messages_of_a_client_that_leaves_are_back_in_order",
            ),
            (
                "qmd/operations/transaction.py",
                "    if settled - again + len(lookup_ids) > SETTLED_MAX:",
                "    if False:",
                "a_transaction_moves_and_rejects_a_limited_number_of_messages",
            ),
        )
    ),
    Removal(
        "receipts of tens of thousands of messages",
        "qmd/operations/receive.py",
        "                left -= FINAL_ACKS_OF_ONE",
        "                left -= 0",
        f"{_RECEIPTS}test_others_are_served_while_acknowledgments_of_receipt_are_made",
    ),
    Removal(
        "receipts of tens of thousands of messages",
        "qmd/operations/large_removals.py",
        "        check()\n",
        "",
        f"{_RECEIPTS}test_a_removal_of_which_the_outcome_is_asked_meanwhile_is_not_done_later",
    ),
    Removal(
        "receipts of tens of thousands of messages",
        "qmd/outcomes/acknowledgment_columns.py",
        "        if not refusal(count):",
        "        if True:",
        f"{_RECEIPTS}test_a_host_gets_as_many_acknowledgments_of_receipt_as_it_may",
    ),
    Removal(
        "a signed message to a thousand queues of this host",
        "qmd/operations/message_protection.py",
        "        if key is not None and self._verified.has(key):",
        "        if False:",
        f"{_LARGE}test_a_signature_over_many_queues_is_verified_once",
    ),
    Removal(
        "requests of which the results are stored",
        "qmd/control/verb_rights.py",
        "    components.outcome_limit.check(rights, claimed)\n",
        "",
        "tests/integration/control/test_outcome_limit.py"
        "::test_a_client_has_no_more_stored_results_than_the_limit",
    ),
    Removal(
        "all places, all waiting requests",
        "qmd/control/places.py",
        "        silent = self._silent.candidate()\n",
        "        silent = None\n",
        f"{_PLACES}test_silent_clients_make_room_for_others",
    ),
    Removal(
        "all places, all waiting requests",
        "qmd/control/places.py",
        "        if active is None or not self._active.is_smaller(owner, active):",
        "        if True:",
        f"{_PLACES}test_a_user_with_all_places_gives_some_up_for_another_user_and_for_operators",
    ),
    Removal(
        "all places, all waiting requests",
        "qmd/control/places.py",
        "        if active is None or not self._active.is_smaller(owner, active):",
        "        if active is None:",
        f"{_PLACES}test_a_user_cannot_make_others_leave_by_many_connections",
    ),
    Removal(
        "all places, all waiting requests",
        "qmd/access/local_users.py",
        "bool(ids & self._operators) or bool(ids & self._checks.administrator_ids)",
        "bool(ids & self._operators)",
        f"{_PLACES}test_a_user_who_may_administer_access_has_a_place_of_the_operators",
    ),
    Removal(
        "all places, all waiting requests",
        "qmd/control/server.py",
        "if self.account is not None and self.account.under_way > REQUESTS_OF_ACCOUNT_MAX:",
        "if False:",
        f"{_PLACES}test_requests_of_a_user_that_wait_are_limited",
    ),
    Removal(
        "reading the data folder or a core file",
        "deploy/qmd.service",
        "LimitCORE=1\n",
        "",
        "tests/unit/test_deploy.py::test_no_body_of_a_message_reaches_a_core_file_or_another_user",
    ),
    Removal(
        "very many queues",
        "qmd/access/owners.py",
        "        if self._counts[name] >= queues_max:",
        "        if False:",
        "tests/integration/control/test_local_users.py::test_a_user_has_no_more_queues_than_the_limit",
    ),
    Removal(
        "reading logs, errors, events, and the list of processes",
        "qmd/daemon.py",
        "    _prevent_core_dumps()\n    os.umask",
        "    os.umask",
        "tests/attack/test_secrets.py::test_no_core_of_the_daemon_can_be_made",
    ),
    Removal(
        "a question about no right, by any user",
        "qmd/access/administration.py",
        "        if not asked:\n",
        "        if False:\n",
        "tests/attack/test_fatal_requests.py::test_a_question_about_no_right_is_refused",
    ),
    Removal(
        "a question about no right, by any user",
        "qmd/daemon.py",
        '    if "future" in context and isinstance(error, Refusal | InvalidName):',
        "    if False:",
        "tests/attack/test_fatal_requests.py::test_a_client_may_leave_while_its_request_is_refused",
    ),
    Removal(
        "odd values in a request",
        "qmd/control/validate.py",
        "    if not 0 <= lookup_id <= LOOKUP_MASK:",
        "    if False:",
        "tests/process/test_control_socket.py::test_no_value_of_a_request_stops_the_daemon",
    ),
    Removal(
        "hundreds of signed messages in one request",
        "qmd/control_protocol/parts.py",
        "SIGNED_AT_ONCE = 8\n",
        "SIGNED_AT_ONCE = 8_000_000\n",
        "tests/integration/control/test_large_requests.py::test_others_are_served_while_signatures_are_verified",
    ),
    Removal(
        "thousands of messages in one import, or in its dry run",
        "qmd/control/message_handlers.py",
        "IMPORTED_AT_ONCE = 64\n",
        "IMPORTED_AT_ONCE = 64_000_000\n",
        "tests/integration/control/test_large_requests.py::test_others_are_served_while_an_import_is_checked",
    ),
    Removal(
        "a queue whose name has DEL",
        "qmd/cli/queue.py",
        'printable(each["public_name"] if public else each["format_name"])',
        'each["public_name"] if public else each["format_name"]',
        f"{_HOSTILE}test_a_name_with_del_is_escaped_in_each_output_and_the_queue_can_be_reached",
    ),
    Removal(
        "a queue whose name has DEL",
        "protocol/names/path_name.py",
        "        and character.isprintable()\n",
        "",
        f"{_HOSTILE}test_other_control_characters_are_in_no_name",
    ),
    Removal(
        "a queue whose name has DEL",
        "qmd/runtime/log.py",
        'return _CONTROLS.sub(lambda found: b"\\\\u00%02x" % found[0][-1], _json(event))',
        "return _json(event)",
        "tests/unit/runtime/test_log.py"
        "::test_control_characters_cannot_forge_a_line_or_move_the_cursor",
    ),
)
