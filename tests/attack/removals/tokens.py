"""Protections against a token of few rights, and clients of the doors for AMQP."""

from tests.attack.removals.removal import Change, Removal

_REMOTE = "tests/process/test_remote_control.py::"
_RIGHTS = "tests/integration/control/test_verb_rights.py::"
_REMOTE_RIGHTS = "tests/attack/test_remote_rights.py::"
_PLACES = "tests/attack/test_client_places.py::"
_ACTING = "tests/integration/control/test_acting.py::"
_AMQP = "tests/attack/test_amqp_rights.py::"
_LIMITS = "tests/amqp/test_limits.py::"
_LOGIN = "tests/amqp/test_login.py::"
_WAITING = f"{_REMOTE}test_a_revoked_token_ends_a_connection_that_only_waits"
_FAULTS = "tests/amqp/test_faults.py::"
_CERTIFICATES = "tests/attack/test_client_certificates.py::"

REMOVALS = (
    Removal(
        "requests about queues of others, in any spelling",
        "qmd/access/rights.py",
        "        if scope and not grant.may(scope):",
        "        if False:",
        f"{_RIGHTS}test_a_token_without_the_scope_is_refused",
    ),
    Removal(
        "requests about queues of others, in any spelling",
        "qmd/access/rights.py",
        "            if not grant.reaches(thing.key):",
        "            if False:",
        f"{_REMOTE}test_a_token_grants_its_queues_under_all_their_names_only",
    ),
    Removal(
        "requests about queues of others, in any spelling",
        "qmd/control/server.py",
        "        if not self.rights.are_all:\n            request = self._admitted(request)\n",
        "",
        "tests/attack/test_access.py::test_no_verb_of_a_token_of_few_rights_has_an_effect",
    ),
    Removal(
        "each verb over the remote port",
        "qmd/access/rights.py",
        "            if refusal.code not in NAMING:\n                raise\n",
        "            raise\n",
        f"{_REMOTE_RIGHTS}test_no_verb_changes_what_others_have_or_names_it",
    ),
    Removal(
        "each verb over the remote port",
        "qmd/access/things.py",
        "        yield Thing(text.casefold() if queue is None else queue.key, text)",
        "        yield Thing(text.casefold(), text) if queue is None else thing_of(queue)",
        f"{_REMOTE_RIGHTS}test_no_verb_changes_what_others_have_or_names_it",
    ),
    Removal(
        "each verb over the remote port",
        "qmd/control/delayed_handlers.py",
        "        if not (rights.may(TO_CANCEL, found) or rights.may(TO_PEEK, found)):",
        "        if False:",
        f"{_REMOTE_RIGHTS}test_no_verb_changes_what_others_have_or_names_it",
    ),
    Removal(
        "ids of transactions and outcomes of other clients",
        "qmd/access/rights.py",
        "            marked[field] = value + self._mark",
        "            marked[field] = value",
        f"{_RIGHTS}test_a_client_cannot_end_a_transaction_of_another",
    ),
    Removal(
        "ids of locks of other clients",
        "qmd/access/rights.py",
        "            marked[field] = value + self._mark",
        "            marked[field] = value",
        f"{_RIGHTS}test_a_client_cannot_settle_a_lock_of_another",
    ),
    Removal(
        "selectors that are long, deep, or expensive",
        "qmd/core/selectors/parser.py",
        "        if self._depth > DEPTH_MAX:",
        "        if False:",
        "tests/unit/core/test_selectors.py::test_a_selector_that_is_too_complex_is_refused",
    ),
    Removal(
        "selectors that are long, deep, or expensive",
        "qmd/core/selectors/tokens.py",
        "    if len(text) > TEXT_CHARACTERS_MAX:",
        "    if False:",
        "tests/unit/core/test_selectors.py::test_a_selector_that_is_too_complex_is_refused",
    ),
    Removal(
        "selectors that are long, deep, or expensive",
        "qmd/core/selectors/like.py",
        "    def matches(text: str) -> bool | None:\n",
        "    whole = re.compile('.*'.join(\n"
        "        ''.join('.' if c is None else re.escape(c) for c in piece) for piece in pieces\n"
        "    ), re.DOTALL)\n\n"
        "    def matches(text: str) -> bool | None:\n        return whole.fullmatch(text) is not None\n",
        "tests/unit/core/test_selectors.py::test_a_pattern_never_goes_back",
    ),
    Removal(
        "properties with many levels or bytes",
        "qmd/properties/block.py",
        "    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError):",
        "    except (msgspec.DecodeError, ValueError, TypeError, OverflowError):",
        "tests/unit/properties/test_block.py::test_a_block_with_too_many_levels_is_not_read",
    ),
    Removal(
        "a topic with queues of others",
        "qmd/core/access.py",
        "    Kind.TOPIC: frozenset({GET_PERMISSIONS}),",
        "    Kind.TOPIC: frozenset({GET_PERMISSIONS, SEND}),",
        "tests/integration/control/test_local_users.py"
        "::test_a_user_sends_to_a_topic_with_the_right_to_it_alone",
    ),
    Removal(
        "locks without end",
        "qmd/operations/locks.py",
        "if len(self._locks) >= LOCKS_MAX or count >= LOCKS_OF_OWNER_MAX:",
        "if False:",
        "tests/integration/operations/test_locks.py::test_a_user_cannot_hold_any_number_of_locks",
    ),
    Removal(
        "leaving while a locked receive waits",
        "qmd/operations/locks.py",
        'receiver.give_back(lock.reader, queue, lookup_ids, "its client left")',
        "pass",
        "tests/integration/operations/test_locks.py"
        "::test_a_message_that_comes_while_a_request_is_cancelled_is_given_back",
    ),
    Removal(
        "thousands of requests in one write",
        "qmd/control_protocol/frame_buffer.py",
        "            if len(frames) == frames_max:",
        "            if False:",
        "tests/unit/control_protocol/test_frames.py"
        "::test_a_read_with_many_frames_is_split_in_parts",
    ),
    Removal(
        "guessed tokens",
        "qmd/control/remote.py",
        "            self._logging_in = True  # a second attempt needs a new connection\n",
        "",
        f"{_REMOTE}test_a_connection_has_one_attempt_to_log_in",
    ),
    Removal(
        "guessed tokens",
        "qmd/control/remote.py",
        "            if not self._remote.failures.allows(owner_of(self._host).name):",
        "            if False:",
        f"{_REMOTE}test_after_many_wrong_tokens_a_host_gets_no_answer_and_a_right_token_is_accepted",
    ),
    Removal(
        "a flood of new connections to the remote port",
        "qmd/control/remote.py",
        "        of_group=NETWORK_RATE,\n",
        "",
        "tests/unit/control/test_arrivals.py"
        "::test_new_addresses_of_one_network_keep_no_other_network_out",
    ),
    Removal(
        "all places, silent TLS connections",
        "qmd/control/remote.py",
        "            oldest.end()\n        arrival = ",
        "            connected.close()\n            return\n        arrival = ",
        f"{_PLACES}test_silent_tls_connections_do_not_keep_others_out",
    ),
    Removal(
        "all places, silent TLS connections",
        "qmd/control/remote.py",
        'owner, is_operator = Owner(("token", grant.name), self._host), grant.may(ADMIN)',
        'owner, is_operator = Owner(("token", self), self._host), False',
        f"{_PLACES}test_a_token_with_all_places_gives_some_up_for_another_and_for_administrators",
    ),
    Removal(
        "all places, silent TLS connections",
        "qmd/control/remote.py",
        "            server.settings.login_timeout_s, self._took_too_long\n",
        "            1e6, self._took_too_long\n",
        f"{_PLACES}test_the_handshake_and_the_login_have_one_time_limit",
        (
            Change(
                "qmd/control/remote.py",
                "ssl_handshake_timeout=self.settings.login_timeout_s if tls else None,",
                "ssl_handshake_timeout=1e6 if tls else None,",
            ),
        ),
    ),
    Removal(
        "a revoked or expired token",
        "qmd/control/token_watch.py",
        "            elif not self.is_valid(holder.grant):",
        "            elif False:",
        f"{_REMOTE}test_a_revoked_token_ends_its_transactions_and_gives_their_messages_back",
    ),
    Removal(
        "a revoked or expired token",
        "qmd/control/remote.py",
        "        if not self._remote.watch.is_valid(grant):\n",
        "        if False:\n",
        f"{_REMOTE_RIGHTS}test_a_request_after_its_token_was_revoked_is_refused_at_once",
    ),
    Removal(
        "a revoked or expired token",
        "qmd/access/tokens.py",
        "        return self.expires != NEVER and parse_time(self.expires) <= now_s",
        "        return False",
        f"{_REMOTE}test_an_expired_token_is_refused_and_ends_its_connections",
    ),
    Removal(
        "requests with a thousand messages, which are done in parts",
        "qmd/control/remote.py",
        "                raise _login_first()\n            self._check(self._grant)\n"
        "        except Refusal as refusal:\n            begun()",
        "                raise _login_first()\n"
        "        except Refusal as refusal:\n            begun()",
        f"{_RIGHTS}test_large_requests_of_a_token_are_counted_and_end_with_it",
    ),
    Removal(
        "a user of a door, or a door that was taken over",
        "qmd/control/acting.py",
        "    if not connection.is_local or isinstance(connection.rights, DoorRights):",
        "    if not connection.is_local:",
        f"{_ACTING}test_a_user_of_a_door_never_gets_the_rights_of_the_door_back",
    ),
    Removal(
        "a user of a door, or a door that was taken over",
        "qmd/control/acting.py",
        "    if principal.kind not in PROVEN_BY_DOORS:",
        "    if False:",
        f"{_ACTING}test_a_door_cannot_become_a_user_of_this_computer",
    ),
    Removal(
        "a door that states the users of another door",
        "qmd/control/verb_rights.py",
        "        return (EVERYTHING,) if any(map(partial(is_of_kind, kind), request.principals)) else ()",
        "        return ()",
        f"{_ACTING}test_a_door_acts_only_for_the_classes_of_users_that_it_serves",
    ),
    Removal(
        "damaged frames, cut connections, bytes that are no AMQP",
        "qmd/doors/amqp/login.py",
        "        except (BadMessage, Refused, ClientError) as error:\n            self._refuse(error)\n\n"
        "    def close",
        "        except (Refused, ClientError) as error:\n            self._refuse(error)\n\n"
        "    def close",
        f"{_FAULTS}test_bytes_that_are_no_amqp_end_their_connection_alone",
    ),
    Removal(
        "guessed passwords over AMQP",
        "qmd/doors/amqp/login.py",
        "        passwords = peer.is_encrypted or (peer.is_loopback and self.passwords_on_loopback)",
        "        passwords = True",
        f"{_LOGIN}test_passwords_are_not_offered_without_tls_nor_anonymous_when_it_is_off",
    ),
    Removal(
        "guessed passwords over AMQP",
        "qmd/doors/attempts.py",
        "            self._count(address, name) < self._failures_max",
        "            True",
        f"{_LOGIN}test_a_user_with_many_wrong_passwords_must_wait",
    ),
    Removal(
        "guessed passwords over AMQP",
        "qmd/doors/amqp/login.py",
        "        self._check_attempts(name)\n        try:\n",
        "        try:\n",
        f"{_LOGIN}test_logins_side_by_side_gain_no_attempts",
    ),
    Removal(
        "a queue with brackets in its name",
        "qmd/access/tokens.py",
        '[pattern.replace("[", "[[]") for pattern in self.queues]',
        "self.queues",
        "tests/unit/access/test_tokens.py::test_a_bracket_in_a_pattern_stands_for_itself",
    ),
    Removal(
        "a name or queue of a token in which a line ends",
        "qmd/access/tokens.py",
        "or not text.isprintable():",
        'or "\\n" in text:',
        "tests/unit/access/test_tokens.py::test_a_name_cannot_end_the_line_of_a_token",
    ),
    Removal(
        "many connections, links, unsettled or giant messages",
        "qmd/doors/amqp/conversation.py",
        "        if len(self.links) >= self.limits.links:",
        "        if False:",
        f"{_LIMITS}test_each_limit_has_its_condition",
    ),
    Removal(
        "many connections, links, unsettled or giant messages",
        "qmd/doors/amqp/conversation.py",
        "        if self.unsettled_bytes >= self.limits.unsettled_bytes:",
        "        if False:",
        f"{_LIMITS}test_a_client_with_many_unsettled_bytes_gets_no_more",
    ),
    Removal(
        "many connections, links, unsettled or giant messages",
        "qmd/doors/amqp/sending.py",
        "        if self._conversation.partial_bytes > limit:",
        "        if False:",
        f"{_LIMITS}test_incomplete_messages_of_all_links_have_a_limit_together",
    ),
    Removal(
        "requests to `$management` whose answers are not taken",
        "qmd/doors/amqp/management.py",
        "        return self._bytes > ANSWERS_BYTES",
        "        return False",
        "tests/amqp/test_management.py"
        "::test_a_client_that_takes_no_answers_is_refused_after_some_megabytes",
    ),
    Removal(
        "every kind of link, message, transaction and operation",
        "qmd/doors/control.py",
        "            await connection.ask(access_frames.ActFor, self._principals)\n",
        "",
        f"{_AMQP}test_no_link_reads_a_queue_of_others",
    ),
    Removal(
        "every kind of link, message, transaction and operation",
        "qmd/doors/control.py",
        "            await connection.ask(access_frames.ActFor, self._principals)\n",
        "",
        f"{_AMQP}test_no_message_reaches_a_queue_of_others",
    ),
    Removal(
        "every kind of link, message, transaction and operation",
        "qmd/doors/amqp/opening.py",
        "        return conversation.principals[0], conversation.container, link.name, role",
        '        return "", conversation.container, link.name, role',
        f"{_AMQP}test_links_and_transactions_of_another_user_are_its_own",
    ),
    Removal(
        "the dynamic reply queue of another user",
        "qmd/doors/amqp/dynamic.py",
        "        for change in changes:",
        "        for change in changes[1:]:",
        f"{_AMQP}test_no_management_of_a_queue_of_others",
    ),
    Removal(
        "messages to other computers, by a user of a door",
        "qmd/core/access.py",
        "        or (caller.is_distant and subject.kind in (Kind.OUTGOING, Kind.ELSEWHERE))\n",
        "",
        f"{_ACTING}test_a_user_of_a_door_elsewhere_sends_to_no_other_host_without_a_right",
    ),
    Removal(
        "cancels delayed messages of others",
        "qmd/control/delayed_handlers.py",
        "        if row.owner and row.owner == rights.owner:",
        "        if True:",
        "tests/integration/control/test_delayed_rights.py"
        "::test_a_client_cancels_its_own_delayed_messages_only",
    ),
    Removal(
        "delays messages for years",
        "qmd/operations/delayed.py",
        "            self._gauge(queue).count_in(*totals)\n",
        "            self._gauge(queue)\n",
        "tests/integration/maintenance/test_delayed_release.py::test_delayed_messages_count_towards_the_quota_of_their_queue",
    ),
    Removal(
        "a revoked or expired token",
        "qmd/control/token_watch.py",
        "            elif not self.is_valid(holder.grant):",
        "            elif False:",
        _WAITING,
    ),
    Removal(
        "a revoked or expired token",
        "qmd/control/token_watch.py",
        "        self._services.loop.call_later(GRACE_S, holder.abort)\n",
        "",
        _WAITING,
    ),
    Removal(
        "messages to other computers than a token",
        "qmd/access/register.py",
        "            levels += [self._level(each, shown(each)) for each in wider]\n",
        "",
        "tests/integration/control/test_rights_elsewhere.py::"
        "test_a_token_may_send_to_one_computer_only",
    ),
    Removal(
        "an expired client certificate",
        "qmd/control/token_watch.py",
        "            elif now_s >= holder.certified_until_s:",
        "            elif False:",
        f"{_CERTIFICATES}test_a_remote_connection_ends_when_the_certificate_of_its_client_expires",
    ),
    Removal(
        "an expired client certificate",
        "qmd/control/remote.py",
        "        if self.components.services.environment.time() >= certified_until_s:",
        "        if False:",
        f"{_CERTIFICATES}test_a_remote_connection_ends_when_the_certificate_of_its_client_expires",
    ),
    Removal(
        "an expired client certificate",
        "qmd/control/remote.py",
        "        if self._authorities != before:",
        "        if False:",
        f"{_CERTIFICATES}test_a_remote_connection_ends_when_its_authority_is_taken_away",
    ),
    Removal(
        "an expired client certificate",
        "qmd/doors/amqp/connection.py",
        "        if left_s < math.inf:",
        "        if False:",
        "tests/amqp/test_login.py::test_a_certificate_that_has_expired_ends_its_connection",
    ),
    Removal(
        "an expired client certificate",
        "qmd/doors/amqp/connection.py",
        " and not has_expired:",
        ":",
        "tests/amqp/test_login.py::test_a_certificate_that_has_expired_ends_its_connection",
        (
            Change(
                "qmd/doors/amqp/connection.py",
                "self._loop.call_later(left_s, self._expired)",
                "self._loop.call_later(max(left_s, 2.0), self._expired)",
            ),
        ),
    ),
    Removal(
        "a flood of new connections to the remote port",
        "qmd/control/remote.py",
        "        of_group=NETWORK_RATE,\n",
        "",
        "tests/attack/test_many_networks.py"
        "::test_a_flood_of_one_network_delays_no_client_of_another_one",
    ),
)
