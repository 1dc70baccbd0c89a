"""Protections against any address that may connect to port 1801, and against datagrams."""

from tests.attack.removals.removal import Removal

_EFFECTS = "tests/attack/test_effects.py::"
_FAIRNESS = "tests/attack/test_fairness.py::"

REMOVALS = (
    Removal(
        "a small file of exported messages",
        "qmd/cli/packed_lines.py",
        "    while line := lines.readline(bytes_max + 1):",
        "    while line := lines.readline():",
        "tests/unit/cli/test_packed_lines.py::"
        "test_a_line_that_is_too_long_is_never_held_as_a_whole",
    ),
    Removal(
        "a capture file of others",
        "qmd/interop/capture.py",
        "            if size > FRAME_BYTES_MAX:\n                raise",
        "            if size < 0:\n                raise",
        "tests/unit/interop/test_capture.py::test_an_absurd_size_is_not_allocated",
    ),
    Removal(
        "malformed packets",
        "qmd/core/session.py",
        "except (ProtocolError, SessionOver) as caught:",
        "except SessionOver as caught:",
        "tests/process/test_malformed_messages.py"
        "::test_a_malformed_message_closes_its_session_and_no_other",
    ),
    Removal(
        "announced but unsent megabytes",
        "qmd/peers/packet_reader.py",
        "return self._services.memory.packets.allows(self, self._host, more_bytes)",
        "return True",
        "tests/process/test_memory.py::test_unfinished_packets_take_no_more_than_their_budget",
    ),
    Removal(
        "silent and half-open connections",
        "qmd/core/session.py",
        "if now >= self._initialization_due:",
        "if now < 0:",
        "tests/process/test_limits.py::test_a_handshake_that_is_not_finished_in_time_is_ended",
    ),
    Removal(
        "silent and half-open connections",
        "qmd/peers/admission.py",
        'oldest.close("too many connections have not finished their handshake")',
        "pass",
        "tests/process/test_limits.py"
        "::test_half_open_connections_are_bounded_and_a_real_peer_is_still_accepted",
    ),
    Removal(
        "sessions in all places, from many addresses",
        "qmd/peers/admission.py",
        "            is_known\n            or now - unproven",
        "            now - unproven",
        f"{_FAIRNESS}test_a_known_host_gets_a_session_although_others_have_all_places",
    ),
    Removal(
        "sessions in all places, from many addresses",
        "qmd/peers/known_hosts.py",
        "            self._seen_s[row.host] = row.seen_s\n",
        "",
        f"{_FAIRNESS}test_a_host_is_known_after_a_restart",
    ),
    Removal(
        "sessions in all places, from many addresses",
        "qmd/peers/admission.py",
        "            or self._unproven.is_smaller(owner, unproven)\n",
        "",
        f"{_FAIRNESS}test_an_address_with_many_sessions_makes_room_for_another_address",
    ),
    Removal(
        "sessions in all places, from many addresses",
        "qmd/peers/admission.py",
        "if proven is not None and is_known and self._proven.is_smaller(owner, proven):",
        "if proven is not None:",
        f"{_FAIRNESS}test_useful_sessions_are_not_ended_for_untrusted_ones",
    ),
    Removal(
        "sessions in all places, from many addresses",
        "qmd/peers/admission.py",
        "oldest = handshakes.candidate() or known.candidate()",
        "oldest = next(iter(handshakes), None) or known.candidate()",
        f"{_FAIRNESS}test_handshakes_of_other_addresses_are_not_dropped_for_those_of_one",
    ),
    Removal(
        "fifty senders of 4 MB",
        "qmd/runtime/bulk_turns.py",
        "        elif shared and rest_s > 0:",
        "        elif shared and rest_s > 1e9:",
        "tests/unit/runtime/test_bulk_turns.py"
        "::test_while_others_have_work_each_waits_for_the_commit_and_a_rest",
    ),
    Removal(
        "fifty senders of 4 MB",
        "qmd/peers/packet_reader.py",
        "return self._held_bytes > 0 and len(self._pending[0]) > LARGE_BYTES",
        "return False",
        "tests/unit/peers/test_large_packets.py::test_large_packets_take_turns_of_their_own",
    ),
    Removal(
        "fifty senders of 4 MB",
        "qmd/transfer/large_arrivals.py",
        "if len(packet) <= LARGE_BYTES or",
        "if len(packet) > LARGE_BYTES or",
        "tests/integration/transfer/test_large_arrivals.py"
        "::test_a_large_message_is_stored_in_pieces",
    ),
    Removal(
        "fifty senders of 4 MB",
        "qmd/queues/parts_ahead.py",
        "        if not part.is_used and part.ids:",
        "        if part.is_used and part.ids:",
        "tests/integration/transfer/test_large_arrivals.py"
        "::test_a_session_that_ends_leaves_no_piece",
    ),
    Removal(
        "floods of small messages",
        "qmd/peers/packet_reader.py",
        "        if self._pending and not (self._waits_for_turn or self._waits_for_disk):",
        "        if self._pending and not self._waits_for_turn:",
        "tests/unit/peers/test_packet_reader.py::test_packets_wait_for_the_disk",
    ),
    Removal(
        "floods of small messages",
        "qmd/peers/packet_reader.py",
        "            left = TURN_PACKETS_MAX - self._processed",
        "            left = 1 << 30",
        "tests/unit/peers/test_packet_reader.py"
        "::test_more_than_a_turn_waits_as_heavy_and_is_not_read_meanwhile",
    ),
    Removal(
        "a peer that never reads",
        "qmd/peers/connection.py",
        "if self._transport.get_write_buffer_size() > unread_bytes_max:",
        "if False:",
        "tests/integration/peers/test_unread.py"
        "::test_a_peer_that_reads_no_acknowledgments_is_ended",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/outcomes/answer_ways.py",
        "        if not isinstance(name, DirectName) or self._is_permitted(name):\n",
        "        if True:\n",
        f"{_EFFECTS}test_a_message_causes_no_connection_to_another_computer_than_its_sender",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/queues/answer_limits.py",
        "if share is not None and len(share.keys) >= settings.queues_per_host:",
        "if False:",
        f"{_EFFECTS}"
        "test_the_queues_that_one_host_asks_for_are_limited_and_applications_have_the_others",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/queues/answer_limits.py",
        "if messages + count > settings.acknowledgments_per_host:",
        "if False:",
        f"{_EFFECTS}test_acknowledgments_that_wait_for_one_host_are_limited_in_number_and_bytes",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/queues/answer_limits.py",
        "if used + size > settings.waiting_per_host_bytes:",
        "if False:",
        f"{_EFFECTS}test_acknowledgments_that_wait_for_one_host_are_limited_in_number_and_bytes",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/queues/answer_limits.py",
        "taken = min(wanted, int(allowance.left))",
        "taken = wanted",
        f"{_EFFECTS}test_further_administration_queues_of_a_flood_are_not_acknowledged",
    ),
    Removal(
        "acknowledgments to queues anywhere",
        "qmd/queues/outgoing_queues.py",
        "        if row.asked_by:\n            self._answer_limits.add(queue, row.asked_by)\n",
        "",
        f"{_EFFECTS}test_the_acknowledgments_of_a_former_run_stay_limited",
    ),
    Removal(
        "acknowledgments to odd addresses",
        "qmd/operations/packet_sender.py",
        "if route.transactional or route.is_read_only:",
        "if route.transactional:",
        "tests/attack/test_odd_addresses.py::test_acknowledgments_to_odd_addresses_stay_here_and_end",
    ),
    Removal(
        "a message to the queue in which a bridge keeps its position",
        "qmd/bridge/inward.py",
        '    if shown["default"] is not None:',
        "    if False:",
        "tests/bridge/test_position.py::test_other_senders_cannot_use_the_queues_of_a_bridge",
    ),
    Removal(
        "a message to the queue in which a bridge keeps its position",
        "qmd/bridge/inward.py",
        "        if len(found) != 1:",
        "        if not found:",
        "tests/bridge/test_position.py::test_a_second_message_in_the_queue_of_the_position_is_refused",
    ),
    Removal(
        "names with silent servers of DNS",
        "qmd/outcomes/answer_ways.py",
        "            return asked._replace(via=source, at=(host, port) if host else None)",
        "            return asked",
        f"{_EFFECTS}test_names_of_computers_in_packets_are_not_looked_up",
    ),
    Removal(
        "names with silent servers of DNS",
        "qmd/peers/name_lookups.py",
        "lane = Lane.PEERS if for_peers else Lane.QUICK",
        "lane = Lane.PEERS",
        "tests/attack/test_slow_names.py"
        "::test_slow_names_in_packets_do_not_delay_the_names_of_applications",
    ),
    Removal(
        "messages to unknown queues",
        "qmd/outcomes/refused_letters.py",
        "        self._usage.set_aside += size\n",
        "",
        f"{_EFFECTS}test_refused_messages_have_a_budget_which_is_not_that_of_applications",
    ),
    Removal(
        "messages to unknown queues",
        "qmd/outcomes/refused_letters.py",
        "self._forget_oldest(max(self._bytes_of, key=self._bytes_of.__getitem__))",
        "self._forget_oldest(next(iter(self._by_host)))",
        f"{_EFFECTS}test_a_flood_of_refused_messages_does_not_end_the_dead_letters_of_another_host",
    ),
    Removal(
        "a flood of refusals",
        "qmd/events/host_shares.py",
        "if size > allowance.left:",
        "if False:",
        f"{_EFFECTS}"
        "test_a_flood_of_refused_messages_does_not_push_the_history_of_others_out_of_the_log",
    ),
    Removal(
        "a flood of heartbeats",
        "qmd/transfer/heartbeats.py",
        "if self._answers >= ANSWERS_MAX:",
        "if False:",
        "tests/integration/transfer/test_heartbeats.py"
        "::test_answers_to_a_flood_of_heartbeats_are_bounded",
    ),
    Removal(
        "a flood of heartbeats",
        "qmd/peers/connection.py",
        "self.owed_express: deque[bytes] = deque(maxlen=EXPRESS_MAX)",
        "self.owed_express: deque[bytes] = deque()",
        "tests/integration/transfer/test_heartbeats.py"
        "::test_answers_to_a_flood_of_heartbeats_are_bounded",
    ),
    Removal(
        "the GUID of another queue manager",
        "qmd/outcomes/answer_ways.py",
        "            and connection.origin != primary.origin",
        "            and False",
        f"{_EFFECTS}"
        "test_a_host_that_states_the_guid_of_another_causes_no_acknowledgments_to_that_one",
    ),
    Removal(
        "a ping datagram",
        "qmd/servers.py",
        "if settings.listen.ping:",
        "if True:",
        "tests/process/test_ping.py::test_no_ping_is_answered_unless_it_is_enabled",
    ),
    Removal(
        "a ping datagram",
        "qmd/peers/ping.py",
        "            request = parse_ping(data)\n        except ProtocolError:\n            return",
        "            request = parse_ping(data)\n        except ProtocolError:\n"
        "            self._socket.sendto(data, address)\n            return",
        "tests/process/test_ping.py::test_other_datagrams_are_ignored",
    ),
    Removal(
        "answers as requests",
        "qmd/peers/ping.py",
        "        if self._is_answer(request):\n            return\n",
        "",
        f"{_FAIRNESS}test_two_hosts_do_not_answer_each_others_answers",
    ),
    Removal(
        "answers as requests",
        "qmd/peers/ping.py",
        "if not self._limit.allows(owner_of(host).name):",
        "if False:",
        f"{_FAIRNESS}test_answers_to_pings_of_one_address_are_limited",
    ),
    Removal(
        "a device or pipe without an end",
        "qmd/cli/given_files.py",
        "stream.read(FILE_BYTES_MAX + 1)",
        "stream.read()",
        "tests/process/test_endless_files.py::test_a_device_without_an_end_is_refused",
    ),
)
