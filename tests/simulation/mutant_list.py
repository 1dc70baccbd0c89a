"""The mutants that mutants.py tries: one-line faults of the code (declared data).

A mutant replaces a text that must occur exactly once in its file, so that a mutant that no longer
applies is detected.  Most mutants have to be detected by a simulated world.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A fault: `old` is replaced by `new` in `file`."""

    name: str
    file: str
    old: str
    new: str
    test: str = ""  # that has to notice it, where a simulation cannot


MUTANTS = (
    # Acknowledgments before the commit.
    Mutant(
        "the receiver acknowledges before the commit",
        "qmd/transfer/incoming.py",
        "        batch.when_durable(partial(self._durable, promise))",
        "        self._durable(promise)",
    ),
    Mutant(
        "a final ack of a refusal leaves before the commit",
        "qmd/outcomes/nack.py",
        "batch.when_durable(partial(self._promises.keep, promise))",
        "self._promises.keep(promise)",
        "tests/integration/history/test_receipts.py",
    ),
    Mutant(
        "a session ack leaves before the commit",
        "qmd/transfer/incoming.py",
        "for stream in turn.rejected | dict.fromkeys(turn.accepted):\n"
        "            if not stream.is_forgotten:\n"
        "                batch.incoming.set",
        "turn.connection.mark_stored(turn.decided)\n"
        "        for stream in turn.rejected | dict.fromkeys(turn.accepted):\n"
        "            if not stream.is_forgotten:\n"
        "                batch.incoming.set",
    ),
    # A session acknowledges stored messages up to the first that is not: a run shows only if the
    # message before it is acknowledged as well.
    Mutant(
        "a run is acknowledged before its commit",
        "qmd/transfer/incoming.py",
        "        turn.decided += range(received.first_number, received.first_number + count)\n",
        "        turn.decided += range(received.first_number, received.first_number + count)\n"
        "        turn.connection.mark_stored(turn.decided)\n",
        "tests/integration/transfer/test_acknowledgments_of_runs.py",
    ),
    Mutant(
        "a message that is in no run is acknowledged before its commit",
        "qmd/transfer/incoming.py",
        "            turn.decided.append(number)\n",
        "            turn.decided.append(number)\n"
        "            turn.connection.mark_stored(turn.decided)\n",
        "tests/integration/transfer/test_acknowledgments_of_runs.py",
    ),
    Mutant(
        "readers get a run before its commit",
        "qmd/transfer/arrivals.py",
        "        turn.arrivals[queue] += stored\n",
        "        queue.deliver(stored)\n",
        "tests/integration/transfer/test_acknowledgments_of_runs.py",
    ),
    Mutant(
        "an order ack names a position that is not durable",
        "qmd/core/sequence.py",
        "return Position(self.durable_id, self.durable_number)",
        "return Position(self.accepted_id, self.accepted_number)",
        "tests/unit/core/test_sequence.py",
    ),
    Mutant(
        "a send is confirmed before the commit",
        "qmd/operations/send_batch.py",
        "batch.when_durable(partial(self._durable, ids, done))",
        "self._durable(ids, done)",
    ),
    Mutant(
        "a removal is confirmed before the commit",
        "qmd/operations/receive.py",
        "batch.when_durable(partial(self._removed, queue, lookup_ids, count, done))",
        "self._removed(queue, lookup_ids, count, done)",
    ),
    Mutant(
        "commits are not synced",
        "storage/engine/connection.py",
        'db.execute("PRAGMA synchronous = FULL")',
        'db.execute("PRAGMA synchronous = OFF")',
    ),
    Mutant(
        "only checkpoints are synced",
        "storage/engine/connection.py",
        'db.execute("PRAGMA synchronous = FULL")',
        'db.execute("PRAGMA synchronous = NORMAL")',
    ),
    Mutant(
        "the page cache is trusted after a failed sync",
        "storage/storage.py",
        'return disk.rewrite_log(path.with_name(f"{path.name}-wal"))',
        'return disk.file_bytes(path.with_name(f"{path.name}-wal"))',
    ),
    Mutant(
        "a failed commit is reported as durable",
        "storage/engine/writer.py",
        'if error is not None:\n            self._fail(failed_by("a commit"',
        "if error is not None:\n            pass\n        elif False:\n"
        '            self._fail(failed_by("a commit"',
    ),
    # The event log against the tables.
    Mutant(
        "the log reports a release before the commit",
        "qmd/transfer/release.py",
        "            group.numbers += map(message_number, packets)\n"
        "            group.sizes += sizes\n",
        "            numbers = list(map(message_number, packets))\n"
        "            self._record_acknowledged(queue, self._services.id, numbers, sizes)\n",
    ),
    Mutant(
        "the log lacks an order ack for an earlier pass",
        "qmd/transfer/release.py",
        "done = outgoing_rows.identities(db, first, last)",
        "done = outgoing_rows.identities(db, 1, 0)",
    ),
    # Resends.
    Mutant(
        "nothing is resent after a reconnect",
        "qmd/queues/outgoing_queue.py",
        "self.sequence.restart()",
        "self.sequence.restart()\n        if not transactional_only:\n            return",
    ),
    Mutant(
        "messages stay in flight after the session is lost",
        "qmd/queues/outgoing_queue.py",
        "self.in_flight.clear()\n        self.window.clear_to_disk(0)",
        "self.window.clear_to_disk(TRANSACTIONAL_FIRST)",
    ),
    Mutant(
        "express messages are not put back after a lost session",
        "qmd/queues/outgoing_queue.py",
        "self.window.put_back(key, waiting, len(waiting[0]))",
        "pass",
    ),
    Mutant(
        "the resend timer is not armed",
        "qmd/queues/outgoing_queues.py",
        "wake_at = queue.sequence.next_timer()",
        "wake_at = None",
    ),
    Mutant(
        "a resend skips the first message",
        "qmd/queues/outgoing_queue.py",
        "self.window.clear_to_disk(TRANSACTIONAL_FIRST)\n            return",
        "first = TRANSACTIONAL_FIRST | (self.sequence.base + self.sequence.acknowledged + 2)\n"
        "            self.window.clear_to_disk(first)\n            return",
    ),
    Mutant(
        "messages of the last run are not sent",
        "qmd/queues/outgoing_queues.py",
        "if queue.messages or queue.awaiting.messages:\n                queue.link.wake()",
        "pass",
    ),
    Mutant(
        "a rejected message is not acknowledged again",
        "qmd/core/sequence.py",
        "self.rejects += 1\n            self._owe_ack(now)",
        "self.rejects += 1",
    ),
    Mutant(
        "no retry follows a failed connection",
        "qmd/peers/link.py",
        "self._retry_timer = loop.call_at(at, self._retry_now)",
        "pass",
    ),
    # Sequences.
    Mutant(
        "the previous number does not skip removed messages",
        "qmd/queues/outgoing_queue.py",
        "if previous != number - 1 or key <= self.renumbered_to:",
        "if False:",
    ),
    Mutant(
        "a new pass does not begin with previous number 0",
        "qmd/core/sequence.py",
        "previous = 0  # nothing that could still be missing precedes it",
        "previous = number - 1",
    ),
    Mutant(
        "a new message is sent before the disk holds that the first order ack has come",
        "qmd/core/sequence.py",
        "return not (self.in_flight or self.acknowledged)",
        "return not self.in_flight",
        "tests/unit/core/test_outgoing_sequence.py",
    ),
    Mutant(
        "an order ack for the last message of an earlier run looks impossible",
        "qmd/core/sequence.py",
        "return is_later and self._is_silent",
        "return False",
        "tests/simulation/test_sequences.py",
    ),
    Mutant(
        "a new sequence inherits the wait for an order ack",
        "storage/tables/outgoing.py",
        "THEN unproven_from ELSE 0 END",
        "THEN unproven_from ELSE unproven_from END",
        "tests/unit/storage/test_outgoing.py",
    ),
    Mutant(
        "the receiver accepts over a gap",
        "qmd/core/sequence.py",
        "return previous <= self.accepted_number < number",
        "return self.accepted_number < number",
    ),
    Mutant(
        "the receiver accepts the last message twice",
        "qmd/core/sequence.py",
        "return previous <= self.accepted_number < number",
        "return previous <= self.accepted_number <= number",
    ),
    Mutant(
        "the receiver's position is not stored",
        "qmd/transfer/incoming.py",
        "batch.incoming.set_sequence(stream.id, *stream.state(turn.wall_s))",
        "pass",
    ),
    Mutant(
        "the receiver's position is not restored",
        "qmd/queues/incoming_sequences.py",
        "IncomingSequence(row.sequence_id, row.number, settings=self._sequence_settings)",
        "IncomingSequence(0, 0, settings=self._sequence_settings)",
    ),
    Mutant(
        "the sender's position is not stored",
        "qmd/operations/send_batch.py",
        "self._outgoing.save(self.in_sequences, batch)",
        "pass",
    ),
    Mutant(
        "an order ack releases one too many",
        "qmd/transfer/release.py",
        "TRANSACTIONAL_FIRST + queue.sequence.base + released\n        )",
        "TRANSACTIONAL_FIRST + queue.sequence.base + released + 1\n        )",
    ),
    Mutant(
        "an order ack of an earlier pass releases one too few",
        "qmd/transfer/release.py",
        "TRANSACTIONAL_FIRST + queue.sequence.base + released\n        )",
        "TRANSACTIONAL_FIRST + queue.sequence.base + released - 1\n        )",
    ),
    Mutant(
        "an order ack releases the next message of the pass",
        "qmd/queues/outgoing_queue.py",
        "while transmitted and transmitted[0].number <= number:",
        "while transmitted and transmitted[0].number <= number + 1:",
    ),
    Mutant(
        "order acks of another sequence are accepted",
        "qmd/core/sequence.py",
        "if sequence_id != self.sequence_id:\n            return None",
        "pass",
        # One that comes so late needs two wraps of bad luck.
        "tests/unit/core/test_outgoing_sequence.py",
    ),
    Mutant(
        "a new sequence begins before the old one is acknowledged",
        "qmd/core/sequence.py",
        "if self.outstanding == 0 and self.next_number > 1:",
        "if self.outstanding <= 1 and self.next_number > 1:",
    ),
    Mutant(
        "later messages do not wait for the removal of a dying one",
        "qmd/queues/outgoing_queue.py",
        "self.removing.add(key)",
        "pass",
        "tests/integration/operations/test_send.py",
    ),
    # Duplicates of plain messages.
    Mutant(
        "duplicates are not detected",
        "qmd/queues/message_id_history.py",
        "if not self.has(source, number, key[3]):\n            return False",
        "return False",
    ),
    Mutant(
        "message ids are not stored",
        "storage/engine/incoming_changes.py",
        "            history.remember(db, self._history)\n",
        "            pass\n",
    ),
    Mutant(
        "message ids are not restored",
        "qmd/queues/message_id_history.py",
        "            segment.restore(runs)\n",
        "",
    ),
    Mutant(
        "message numbers begin at 1 with each start",
        "storage/tables/counters.py",
        "return int(value) - count",
        "return 1",
    ),
    # Sessions.
    Mutant(
        "a session ack names one message too many as stored",
        "qmd/core/session_acks.py",
        "flags = (1 << stored) - 1",
        "flags = (1 << stored + 1) - 1",
    ),
    Mutant(
        "received messages count as stored",
        "qmd/core/session_acks.py",
        "return self.stored_count - self.stored_acknowledged_count",
        "return self.recoverable_received_count - self.stored_acknowledged_count",
    ),
    Mutant(
        "messages stored out of order count as stored up to the last",
        "qmd/core/session_acks.py",
        "elif number > stored:\n                early.add(number)",
        "elif number > stored:\n                stored = number",
        "tests/unit/core/test_session_acks.py",
    ),
    Mutant(
        "receipt releases recoverable messages",
        "qmd/core/window.py",
        "express = self._express",
        "released += self._recoverable.values()\n"
        "            self._recoverable.clear()\n"
        "            express = self._express",
    ),
    Mutant(
        "only the first 32 acknowledgments are sent",
        "qmd/core/session.py",
        "while self.incoming.pending:",
        "while False:",
        "tests/unit/core/test_session_acknowledgments.py",
    ),
    Mutant(
        "an idle session is closed while acknowledgments are missing",
        "qmd/core/session.py",
        "if not (self._active or self.outgoing.outstanding or self.incoming.pending):",
        "if not self._active:",
    ),
    Mutant(
        "a silent peer does not time out",
        "qmd/core/session.py",
        "if not self._has_received:",
        "if False:",
    ),
    # Dead messages.
    Mutant(
        "a dead message stays on disk",
        "qmd/outcomes/removal.py",
        "outgoing_rows.delete(db, [base | each.dying.key for each in removed])",
        "pass",
    ),
    Mutant(
        "no dead letter at the source",
        "qmd/outcomes/removal.py",
        "return is_kept_as_dead(row.packet, discard=row.discard)",
        "return False",
    ),
    Mutant(
        "a refused message becomes two dead letters",
        "qmd/outcomes/nack.py",
        "known = not is_foreign and self._known_messages.has(",
        "known = False and self._known_messages.has(",
    ),
    Mutant(
        "a refused message becomes no dead letter",
        "qmd/outcomes/nack.py",
        "        if result.dead_letter is not None:",
        "        if False:",
    ),
    Mutant(
        "no final ack for a refused message",
        "qmd/outcomes/nack.py",
        "batch.when_durable(partial(self._promises.keep, promise))",
        "pass",
    ),
    Mutant(
        "an expired message in its queue becomes no dead letter",
        "qmd/outcomes/dead_letter.py",
        "            if result.dead_letter is not None:",
        "            if False:",
    ),
    # Readers.
    Mutant(
        "a dead reader keeps its messages",
        "qmd/operations/receive.py",
        "self.give_back(reader, queue, sorted(mine), why)",
        "pass",
        "tests/integration/operations/test_receive.py",
    ),
    Mutant(
        "a refill makes taken messages ready again",
        "qmd/core/ready_window.py",
        "key not in self._taken\n                and key not in held\n",
        "key not in held\n",
        "tests/unit/core/test_ready.py",
    ),
    Mutant(
        "a refill makes reserved messages ready again",
        "qmd/core/ready_window.py",
        "key not in self._taken\n                and key not in held\n",
        "key not in self._taken\n",
        "tests/properties/test_ready_window.py",
    ),
    Mutant(
        "a refill makes removed messages ready again",
        "qmd/core/ready_window.py",
        "                and key not in gone\n                and key not in gone_runs\n",
        "",
    ),
    Mutant(
        "a refill skips a message",
        "qmd/core/ready_window.py",
        "self._horizon = _NOWHERE if complete else rows[-1][0] + 1",
        "self._horizon = _NOWHERE if complete else rows[-1][0] + 2",
    ),
    Mutant(
        "a full window loses dropped messages",
        "qmd/core/ready_window.py",
        "self._horizon, _, size = lane.pop()",
        "_, _, size = lane.pop()",
    ),
    Mutant(
        "messages given back come last",
        "qmd/queues/local_queue.py",
        "self.window.put_back(lookup_id, held, len(held.packet))\n"
        "                if message.expires_at_s",
        "self.window.put_back(\n"
        "                    lookup_id + (1 << 30), held, len(held.packet)\n"
        "                )\n"
        "                if message.expires_at_s",
    ),
    # Clients.
    Mutant(
        "the outcome of a request is not stored",
        "storage/engine/batch.py",
        "self._outcomes.append((token, result, at_s))",
        "pass",
    ),
    Mutant(
        "the client resends without asking for the outcome",
        "qmd/client/caller.py",
        "if result is not None:\n                    return result",
        "pass",
    ),
    Mutant(
        "the client reports an unknown removal as none",
        "qmd/client/receiver.py",
        "return await self._caller.outcome(token) is not None",
        "return False",
    ),
    Mutant(
        "the client does not wait for the earlier batch",
        "qmd/client/sender.py",
        "if before is not None and not before.done():\n"
        "                    await asyncio.wait([before])",
        "pass",
        "tests/integration/client/test_sending.py",
    ),
    Mutant(
        "the outcome is read without the open batch",
        "qmd/operations/request_outcomes.py",
        "self._services.storage.batch.read_after(\n"
        "            partial(outcome_rows.find, token=token, shared=shared), "
        "partial(_settle, found)\n"
        "        )\n"
        "        result = await found",
        "result = await self._services.storage.read(\n"
        "            partial(outcome_rows.find, token=token, shared=shared)\n"
        "        )",
        "tests/integration/operations/test_transactions.py",
    ),
    # Counters.
    Mutant(
        "released messages are still counted",
        "qmd/transfer/release.py",
        "for message in messages])\n        queue.shrink(sum(sizes))\n",
        "for message in messages])\n",
    ),
    Mutant(
        "dead letters are not counted",
        "qmd/outcomes/dead_letter.py",
        "queue.count_in(1, len(message.packet))",
        "queue.grow(len(message.packet))",
    ),
    Mutant(
        "owed acknowledgments are not sent after a restart",
        "qmd/manager.py",
        "await assembly.source_acknowledgments.send_owed()",
        "pass",
        "tests/integration/history/test_receipts.py",
    ),
    Mutant(
        "sent acknowledgments stay owed",
        "qmd/outcomes/undeliverable.py",
        "self._services.storage.batch.run(partial(owed_rows.remove, ids=acknowledged))",
        "pass",
    ),
    # Transactions of applications.
    Mutant(
        "an aborted transaction keeps its messages",
        "qmd/operations/transactions.py",
        "        count = self._message_receiver.abort(",
        "        count = 0 if True else self._message_receiver.abort(",
    ),
    Mutant(
        "a transaction commits after its application got an error",
        "qmd/operations/sealed_tokens.py",
        "if connection < newest:",
        "if False:",
        "tests/integration/operations/test_transactions.py",
    ),
    # Confirmations.
    Mutant(
        "the order ack removes messages that await confirmation",
        "storage/engine/pending.py",
        "self._kept = awaiting.take_over(db, self._arrived)",
        "self._kept = []",
    ),
    Mutant(
        "two order acks of one commit count a message twice",
        "storage/engine/outgoing_changes.py",
        "if len(self._arrivals) > 1:",
        "if False:",
    ),
    Mutant(
        "no final ack for a received message",
        "qmd/outcomes/dead_letter.py",
        "if for_final_ack:",
        "if False:",
    ),
    Mutant(
        "a message that is confirmed as lost becomes no dead letter",
        "qmd/transfer/confirmation.py",
        "self._bury(Kind.FINAL_ACK_RECEIVED, queue, row, message_class, reason)",
        "pass",
    ),
    Mutant(
        "a final ack is acknowledged before its effect is on disk",
        "qmd/transfer/confirmation.py",
        "            self._look_up(connection, final_acks[looked_for:], numbers)\n"
        "        else:\n            promise = Promise(connection, numbers)\n"
        "            self._services.storage.batch.when_durable("
        "partial(self._promises.keep, promise))",
        "            self._look_up(connection, final_acks[looked_for:], numbers)\n"
        "        else:\n            self._promises.keep(Promise(connection, numbers))",
        "tests/integration/transfer/test_confirmation.py",
    ),
    Mutant(
        "counters of awaiting messages are not corrected",
        "qmd/transfer/confirmation.py",
        "queue.awaiting.add(len(found) - expected.messages, size - expected.bytes)",
        "pass",
        "tests/integration/transfer/test_confirmation.py",
    ),
    # More of sessions and sequences.
    Mutant(
        "messages that were stored early are never acknowledged",
        "qmd/core/session_acks.py",
        "while early and stored + 1 in early:",
        "while False:",
        "tests/unit/core/test_session_acks.py",
    ),
    Mutant(
        "a new sequence is accepted without its beginning",
        "qmd/core/sequence.py",
        "return sequence_id > self.accepted_id and previous == 0 and number > 0",
        "return sequence_id > self.accepted_id and number > 0",
    ),
    Mutant(
        "an old sequence is accepted again",
        "qmd/core/sequence.py",
        "return sequence_id > self.accepted_id and previous == 0 and number > 0",
        "return sequence_id != self.accepted_id and previous == 0 and number > 0",
        "tests/unit/core/test_sequence.py",
    ),
    Mutant(
        "an order ack beyond the sent messages is accepted",
        "qmd/core/sequence.py",
        "if number > self._highest_transmitted:\n            raise",
        "if False:\n            raise",
        "tests/unit/core/test_outgoing_sequence.py",
    ),
    # More of the storage.
    Mutant(
        "callers get success when a commit has failed",
        "storage/engine/writer.py",
        "if self._failure is None:\n            self._report(batch)",
        "self._report(batch)",
    ),
    Mutant(
        "a failed batch is not rolled back before its retry",
        "storage/engine/commit.py",
        'if db.in_transaction:\n            db.execute("ROLLBACK")',
        "pass",
        "tests/unit/storage/test_writer.py",
    ),
    Mutant(
        "released rows are counted and not deleted",
        "storage/tables/outgoing.py",
        'db.execute("DELETE FROM outgoing WHERE key BETWEEN ? AND ?", (first, last))',
        "pass",
    ),
    # The disk.
    # Lifetimes.
    Mutant(
        "lifetimes follow the wall clock",
        "qmd/runtime/clock.py",
        "return int(self._environment.boot_time() + self._ahead_s)",
        "return int(self._environment.time())",
        "tests/integration/maintenance/test_clock_steps.py::test_a_step_of_the_wall_clock_does_not_change_expiry",
    ),
    Mutant(
        "a restart counts the time since boot again",
        "qmd/runtime/clock.py",
        "return at + boot_s - row.boot_ms / 1000",
        "return at",
        "tests/integration/runtime/test_clock.py",
    ),
    Mutant(
        "any wall clock is accepted after a reboot",
        "qmd/runtime/clock.py",
        "if 0 <= downtime_s <= self._downtime_max_s:",
        "if True:",
        "tests/integration/runtime/test_clock.py",
    ),
    Mutant(
        "an expired message that is given back is ready again",
        "qmd/queues/local_queue.py",
        "                        self.expired.append(whole_message(held))\n"
        "                    elif",
        "                        pass\n                    elif",
        "tests/integration/maintenance/test_expiry.py",
    ),
    Mutant(
        "waiting messages keep their sent time after the clock was set",
        "qmd/queues/outgoing_queue.py",
        "return with_sent_time(packet, sent_s)",
        "return packet",
        "tests/integration/maintenance/test_clock_steps.py",
    ),
    Mutant(
        "a sent time in the future extends the lifetime",
        "qmd/core/packet_fields.py",
        "max(wall_s - sent_time_s(packet), 0)",
        "(wall_s - sent_time_s(packet))",
        "tests/integration/maintenance/test_expiry.py",
    ),
    Mutant(
        "the batch is not retried on a full disk",
        "storage/engine/commit.py",
        "write(db, batch, marker)  # once more, from the beginning",
        "pass",
    ),
    Mutant(
        "a request is stored in part",
        "storage/engine/batch.py",
        "messages.insert(db, rows)",
        "messages.insert(db, rows)\n"
        "                db.execute('COMMIT')\n"
        "                db.execute('BEGIN IMMEDIATE')",
    ),
    # Faults that worlds have found, and transactions, moves and receipts.
    Mutant(
        "a recreated queue loses the history of its predecessor",
        "storage/tables/queues.py",
        "sequences.take_over(db, row.name, row.id)",
        "pass",
        "tests/simulation/test_queue_managers.py::"
        "test_a_recreated_queue_does_not_accept_a_message_twice",
    ),
    Mutant(
        "an order ack deletes rows that only the disk can count",
        "qmd/transfer/release.py",
        "first = max(TRANSACTIONAL_FIRST, queue.known_to_disk + 1)",
        "first = TRANSACTIONAL_FIRST",
        "tests/simulation/test_queue_managers.py::"
        "test_two_order_acks_in_one_commit_release_only_their_own_rows",
    ),
    Mutant(
        "a decision is deleted before its databases have it",
        "storage/tables/outcomes.py",
        " WHERE token NOT IN (SELECT transaction_id FROM branch) ORDER BY id LIMIT ?)",
        " ORDER BY id LIMIT ?)",
        "tests/unit/storage/test_small_tables.py",
    ),
    Mutant(
        "a branch prepares without its record on disk",
        "qmd/operations/two_phase_commit.py",
        "await self._services.storage.batch.run(partial(branch_rows.add, row=row))",
        "pass",
        "tests/process/test_two_phase.py::test_a_transaction_in_doubt_is_listed_and_recovered",
    ),
    Mutant(
        "a branch of a transaction under way is deleted",
        "qmd/operations/two_phase_commit.py",
        "if self._transactions.is_under_way(transaction_id):",
        "if False:",
        "tests/process/test_two_phase.py::"
        "test_a_branch_is_not_deleted_while_its_transaction_is_open",
    ),
    Mutant(
        "a transaction without an outcome counts as committed",
        "qmd/operations/two_phase_commit.py",
        'decision = "roll back"',
        'decision = "commit"',
        "tests/process/test_two_phase.py::test_a_transaction_in_doubt_is_listed_and_recovered",
    ),
    Mutant(
        "a client that leaves during the commit undoes it",
        "qmd/operations/transactions.py",
        "if transaction.owner is owner and not transaction.is_committing:\n"
        "                self._abort",
        "if transaction.owner is owner:\n                self._abort",
        "tests/integration/operations/test_transactions.py",
    ),
    Mutant(
        "messages that a transaction moves or rejects are only removed",
        "qmd/operations/transaction_receipts.py",
        "        mover.move_taken(reader, source, target, lookup_ids, transaction.id.hex(), why)\n"
        "    for (queue, reason), lookup_ids in by_queues(transaction.rejections).items():",
        "        pass\n    for (queue, reason), lookup_ids in ():",
        "tests/integration/operations/test_transactions.py",
    ),
    Mutant(
        "a transaction may commit after a query of its outcome",
        "qmd/operations/transactions.py",
        'self._abort(transaction, "another connection asked for its outcome")',
        "pass",
        "tests/integration/operations/test_transactions.py",
    ),
    Mutant(
        "a final ack for another message with the same number ends this one",
        "qmd/transfer/confirmation.py",
        "return  # the final ack is about another message",
        "pass",
        "tests/integration/transfer/test_confirmation.py",
    ),
    Mutant(
        "missing messages of a move are ignored",
        "qmd/operations/move_unit.py",
        "if gone and self.is_named:",
        "if False:",
        "tests/integration/operations/test_move.py",
    ),
    Mutant(
        "an abort is not counted",
        "storage/tables/messages.py",
        "abort_count = abort_count + 1",
        "abort_count = abort_count",
        "tests/unit/storage/test_messages.py",
    ),
    Mutant(
        "a received message has no copy in its queue's journal",
        "qmd/outcomes/journal_copies.py",
        "        put_all(journal, copies, batch)\n",
        "",
        "tests/integration/operations/test_journals.py",
    ),
    # Messages to several queues: copies and their shared body.
    Mutant(
        "all copies have the number of the first",
        "qmd/operations/send_copies.py",
        "[(routes[index], numbers[index]) for index in rest]",
        "[(routes[index], numbers[0]) for index in rest]",
    ),
    Mutant(
        "a copy does not name its destination",
        "qmd/naming/fan_out.py",
        "                destination.wire,\n                self._queues,",
        "                self._queues[:0],\n                self._queues,",
    ),
    Mutant(
        "the last of several destinations is left out",
        "qmd/operations/send_copies.py",
        "[(routes[index], numbers[index]) for index in rest]",
        "[(routes[index], numbers[index]) for index in rest[:-1]]",
    ),
    Mutant(
        "a plain queue accepts a transactional copy",
        "qmd/operations/send_copies.py",
        "if index in copies.misfits:\n                self._refuse(",
        "if index in ():\n                self._refuse(",
    ),
    Mutant(
        "a body is stored although every queue refuses its copy",
        "qmd/operations/send_copies.py",
        "taken = len(numbers) - len(copies.misfits)",
        "taken = len(numbers)",
    ),
    Mutant(
        "a body is deleted with the first of its copies",
        "storage/tables/shared_parts.py",
        'TABLES = ("message", "outgoing", "awaiting")',
        'TABLES = ("message", "awaiting")',
    ),
    Mutant(
        "a body stays after its last copy",
        "storage/tables/shared_parts.py",
        "    if named:\n        delete_unnamed",
        "    if not named:\n        delete_unnamed",
    ),
    Mutant(
        "a body is read for another one",
        "qmd/message/shared_packet.py",
        "part = self._known.get(part_id)",
        "part = next(iter(self._known.values()), None)",
    ),
    Mutant(
        "a copy counts only the size of its head",
        "qmd/message/shared_packet.py",
        "return len(self.head) + len(self.part.packet)",
        "return len(self.head)",
    ),
    Mutant(
        "a row of a copy has the wrong length of its body",
        "qmd/message/shared_packet.py",
        "(packet.part.id, len(packet.part.packet))",
        "(packet.part.id, len(packet.head))",
    ),
    Mutant(
        "a row of a copy does not name its body",
        "qmd/queues/put.py",
        "head, part = stored.packet, part_of(packet)",
        "head, part = stored.packet, None",
    ),
    Mutant(
        "copies are delivered before the commit",
        "qmd/operations/send_batch.py",
        "kind[route] = [appended]",
        "kind[route] = [appended]\n                self._outgoing.appended(route, kind.pop(route))",
    ),
    # Relays and routes.
    Mutant(
        "a relay accepts a message twice",
        "qmd/transfer/relay_store.py",
        "if not held.add(transaction.sequence_number):",
        "if not held.add(transaction.sequence_number) and False:",
    ),
    Mutant(
        "a relay keeps state of released messages",
        "qmd/transfer/relay_store.py",
        "            held.discard(number)\n",
        "            pass\n",
    ),
    Mutant(
        "a relay loses its state with its process",
        "qmd/transfer/relay_store.py",
        "self._numbers(queue, source, sequence_id).add(number)",
        "self._numbers(queue, source, sequence_id)",
    ),
    Mutant(
        "a relay acknowledges messages that it does not keep",
        "qmd/transfer/relay.py",
        "self._store.put(queue, bytes(copy), message, connection, left_s)",
        "self._store.put(queue, bytes(copy), message, connection, left_s)"
        " if user.flags & _HOPS else None",
    ),
    Mutant(
        "a relay handles relayed acknowledgments as its own",
        "qmd/transfer/relay_rules.py",
        "            if isinstance(destination, int):\n                return PrivateName",
        "            if isinstance(destination, int):\n                return None\n"
        "                return PrivateName",
    ),
    Mutant(
        "the return route is not remembered",
        "qmd/peers/next_hop.py",
        "        self._set(source, via, connection.host)\n",
        "",
    ),
    Mutant(
        "the return route is lost with the process",
        "qmd/peers/next_hop.py",
        "lambda db: ways_back.remember(db, row)",
        "lambda db: None",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "the direct route is tried in spite of a configured one",
        "qmd/peers/next_hop.py",
        "                return self._links(rule.hops, link)\n        return itself",
        "                return (*self._links(rule.hops, link), link)\n        return itself",
    ),
    Mutant(
        "a route with an address pattern matches no host",
        "qmd/peers/next_hop.py",
        "else link.address is not None and pattern.has_host(link.address[0])",
        "else False",
    ),
    # Code that no mutant above changes.
    Mutant(
        "a message that ends in its queue stays on disk",
        "qmd/outcomes/unreceived_ends.py",
        "batch.delete_messages([queue.id << LOOKUP_BITS | each for each, _ in stored])",
        "pass",
    ),
    Mutant(
        "the journal copy is made in another commit than the release",
        "qmd/transfer/release.py",
        "        if has_copies:\n            self.release()",
        "        if False:\n            self.release()",
    ),
    Mutant(
        "a relay of messages counts as their destination",
        "qmd/transfer/speakers.py",
        "*link.acknowledgers} - {None}\n",
        "*link.acknowledgers} - {None}\n"
        "        carriers = link._next_hops.carriers(link)\n"
        "        known |= {each.remote_id for each in carriers} - {None}\n",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "a relay brings acknowledgments of a new destination over the carrying session only",
        "qmd/transfer/speakers.py",
        "                or _is_carried_by(link, connection)\n",
        "",
        "tests/process/test_relay.py",
    ),
    Mutant(
        "a release includes messages beyond it",
        "qmd/transfer/release.py",
        "last = messages[-1].key\n            batch.outgoing.delete_range(",
        "last = messages[-1].key + 1\n            batch.outgoing.delete_range(",
        "tests/integration/transfer/test_confirmation.py",
    ),
    Mutant(
        "the window drops a removed message before the commit",
        "qmd/operations/receive.py",
        "batch.when_durable(partial(self._removed, queue, lookup_ids, count, done))",
        "queue.forget(lookup_ids)\n"
        "        batch.when_durable(partial(self._removed, queue, [], count, done))",
        "tests/integration/operations/test_receive.py",
    ),
    Mutant(
        "a sequence continues with its first number",
        "storage/tables/outgoing.py",
        "base = ?2, next_number = ?3 WHERE",
        "base = ?, next_number = max(1, ? - 1) WHERE",
        "tests/unit/storage/test_outgoing.py",
    ),
    Mutant(
        "a new sequence does not move the base",
        "qmd/core/sequence.py",
        "self.base += after",
        "self.base += 0",
        "tests/unit/core/test_outgoing_sequence.py",
    ),
    Mutant(
        "an order ack without news releases again",
        "qmd/core/sequence.py",
        "            self.last_ack_count += 0 < number == self.acknowledged\n"
        "            return None",
        "            self.last_ack_count += 0 < number == self.acknowledged\n"
        "            return number",
        "tests/unit/core/test_outgoing_sequence.py",
    ),
    # Further mutants of all parts.
    Mutant(
        "a session ack of a refusal leaves before the commit",
        "qmd/transfer/incoming.py",
        "        if not turn.has_consequences:\n            return\n        batch =",
        "        if not (turn.arrivals or turn.accepted or turn.rejected):\n"
        "            turn.connection.mark_stored(turn.decided)\n"
        "            return\n"
        "        batch =",
    ),
    Mutant(
        "arriving messages wake no reader",
        "qmd/outcomes/promises.py",
        "            queue.deliver(messages)",
        "            for m in messages:\n"
        "                queue.window.add(m.lookup_id, m, len(m.packet), stored=True)",
    ),
    Mutant(
        "priorities of received messages are inverted",
        "qmd/transfer/arrivals.py",
        "return 7 - (message.base.flags & 7)",
        "return message.base.flags & 7",
    ),
    Mutant(
        "priorities of local messages are inverted",
        "qmd/operations/send_batch.py",
        "return self._services.ids.next_lookup_id(PRIORITY_MAX - new.priority), None",
        "return self._services.ids.next_lookup_id(new.priority), None",
    ),
    Mutant(
        "bytes of received messages are still counted",
        "qmd/queues/local_queue.py",
        "        self.left_count += messages\n        self.shrink(size)",
        "        self.left_count += messages",
    ),
    Mutant(
        "expired messages are still counted",
        "qmd/outcomes/unreceived_ends.py",
        "            queue.count_out(len(stored), sum([len(packet) for _, packet in stored]))",
        "            pass",
    ),
    Mutant(
        "session acks do not update the counters",
        "qmd/transfer/release.py",
        "queue.others -= len(packets)\n        queue.shrink(sum(sizes))\n",
        "queue.others -= len(packets)\n",
    ),
    Mutant(
        "a dead letter has no reason",
        "qmd/outcomes/dead_letter.py",
        "self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, reason\n",
        "self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, None\n",
    ),
    Mutant(
        "a confirmed message is not journaled",
        "qmd/transfer/confirmation.py",
        "            if wants_journal(packet):\n                self._dead_letters.journal(packet)",
        "            if False:\n                self._dead_letters.journal(packet)",
    ),
    Mutant(
        "the log lacks journaled messages",
        "qmd/outcomes/journal_copies.py",
        "        if kept:\n            recorder.record(",
        "        if False:\n            recorder.record(",
    ),
    Mutant(
        "the log lacks received messages",
        "qmd/operations/receive.py",
        "        self._recorder.record(\n            EventHeader(Kind.RECEIVED,",
        "        (lambda *a, **k: None)(\n            EventHeader(Kind.RECEIVED,",
    ),
    Mutant(
        "a long batch loses its last message",
        "storage/engine/batch.py",
        "messages.insert(db, rows)",
        "messages.insert(db, rows[:20])",
    ),
    Mutant(
        "the last of many deletions of a batch is lost",
        "storage/engine/batch.py",
        "messages.delete(db, self._message_deletions)",
        "messages.delete(db, self._message_deletions[:20])",
    ),
    Mutant(
        "awaiting rows are not deleted",
        "storage/engine/outgoing_changes.py",
        "            awaiting.delete(db, self._awaiting_deletions)",
        "            pass",
    ),
    Mutant(
        "an abort of a transaction is not counted",
        "qmd/operations/receive.py",
        "        counted, staying = not reader.is_unread, lookup_ids\n        if counted:",
        "        counted, staying = not reader.is_unread, lookup_ids\n        if False:",
    ),
    Mutant(
        "a dead letter can be read before the commit",
        "qmd/outcomes/dead_letter.py",
        "batch.when_durable(partial(queue.deliver, [stored]))",
        "queue.deliver([stored])",
    ),
    Mutant(
        "arrivals can be read before the commit",
        "qmd/transfer/incoming.py",
        "        promise = Promise(turn.connection, turn.decided, turn.accepted, turn.arrivals)\n",
        "        for queue, messages in turn.arrivals.items():\n"
        "            queue.deliver(messages)\n"
        "        promise = Promise(turn.connection, turn.decided, turn.accepted)\n",
    ),
    Mutant(
        "a relay sends before the commit",
        "qmd/transfer/relay_store.py",
        "self._waiting.setdefault(queue, []).append(appended)",
        "self._outgoing.appended(queue, [appended])",
    ),
    Mutant(
        "a final ack of a receipt leaves before the commit",
        "qmd/outcomes/acknowledgments.py",
        "batch.when_durable(partial(self._outgoing.appended, way.queue, appended))",
        "self._outgoing.appended(way.queue, appended)",
    ),
    Mutant(
        "a waiting reader gets no answer at its timeout",
        "qmd/operations/receive.py",
        "            queue.waiters.remove(waiter)\n            waiter.answer([])\n\n    def serve",
        "            queue.waiters.remove(waiter)\n\n    def serve",
    ),
    Mutant(
        "a dead letter keeps its old class",
        "qmd/outcomes/dead_letter.py",
        "dead = patch_class(packet, message_class)",
        "dead = packet",
    ),
    Mutant(
        "a dead letter of an outgoing queue keeps its old class",
        "qmd/outcomes/removal.py",
        "                self.reason,\n"
        "                patch_class(each.packet, self.message_class),",
        "                self.reason,\n                each.packet,",
    ),
    Mutant(
        "a local message is not journaled when it is received",
        "qmd/outcomes/dead_letter.py",
        "            if result.journal:\n                self.journal(packet)",
        "            if False:\n                self.journal(packet)",
    ),
    Mutant(
        "only the first position of a batch is stored",
        "storage/engine/incoming_changes.py",
        "self._states[incoming_id] = state",
        "self._states.setdefault(incoming_id, state)",
    ),
    Mutant(
        "messages of a transaction are sent before the commit",
        "qmd/operations/send_batch.py",
        "        if self.to_queues or self.to_send or self._token or self.has_delayed:\n",
        "        self._outgoing.all_appended(self.to_send)\n        self.to_send = {}\n"
        "        if self.to_queues or self.to_send or self._token or self.has_delayed:\n",
    ),
    Mutant(
        "local messages can be read before the commit",
        "qmd/operations/send_batch.py",
        "            batch.when_durable(partial(self._durable, ids, done))",
        "            self._durable(ids, lambda ids: None)\n"
        "            batch.when_durable(partial(done, ids))",
    ),
    Mutant(
        "order acks name accepted positions",
        "qmd/outcomes/promises.py",
        "if stream.sequence.mark_durable(sequence_id, number, now):",
        "if stream.sequence.mark_durable(stream.sequence.accepted_id, "
        "stream.sequence.accepted_number, now) if (stream.sequence.durable_id, "
        "stream.sequence.durable_number) < (stream.sequence.accepted_id, "
        "stream.sequence.accepted_number) else False:",
    ),
    Mutant(
        "ids of streams are assigned twice",
        "qmd/queues/incoming_sequences.py",
        "        self._next_id = max(self._next_id, row.id + 1)",
        "        self._next_id = max(self._next_id, row.id)",
    ),
    Mutant(
        "relayed messages stay in memory after their release",
        "qmd/transfer/release.py",
        "        for queue, key in messages:\n            queue.window.remove(key)",
        "        pass",
    ),
    Mutant(
        "the newest message does not expire",
        "qmd/queues/outgoing_queue.py",
        "if not self.sequence.acknowledged < number < self.sequence.next_number:",
        "if not self.sequence.acknowledged < number < self.sequence.next_number - 1:",
    ),
    Mutant(
        "dead messages stay in flight",
        "qmd/queues/outgoing_queue.py",
        "        if sent is not None:\n            self.transmitted.remove(sent)",
        "        pass",
    ),
    Mutant(
        "a final ack is searched before the batch that it follows",
        "qmd/transfer/confirmation.py",
        "        self._outgoing_release.release()\n        if final_acks",
        "        if final_acks",
    ),
    Mutant(
        "messages given back during a deletion are lost",
        "qmd/operations/purge.py",
        "if not left or (left == before and not ended.messages):",
        "if True:",
        "tests/integration/operations/test_purge.py",
    ),
    Mutant(
        "ended messages leave the counters before the commit",
        "qmd/outcomes/unreceived_ends.py",
        "        batch.when_durable(ended)",
        "        ended()",
    ),
    Mutant(
        "the log lacks messages discarded in their queue",
        "qmd/outcomes/dead_letter.py",
        "self._recorder.record(header, discarded)",
        "pass",
    ),
    Mutant(
        "a refill serves no waiting reader",
        "qmd/operations/receive.py",
        "complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)\n        self.serve(queue)",
        "complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)",
    ),
    Mutant(
        "a quota admits one message too many",
        "qmd/transfer/acceptance.py",
        "        has_room = queue.has_room(size)\n",
        "        has_room = queue.has_room(size) or queue.bytes <= (queue.quota_bytes or 0)\n",
    ),
    Mutant(
        "acknowledgments are journaled",
        "qmd/outcomes/journal_copies.py",
        " if not _is_of_the_system(each.packet)]",
        "]",
    ),
    Mutant(
        "an aborted transaction still waits for messages",
        "qmd/operations/receive.py",
        "        self.stop_waiting(reader)\n        count = 0",
        "        count = 0",
    ),
    Mutant(
        "a delivered plain message is not journaled",
        "qmd/transfer/release.py",
        "if wants_journal(packet) and not queue.for_others:",
        "if False:",
    ),
    Mutant(
        "an abort is confirmed before it is counted",
        "qmd/control/message_handlers.py",
        "connection.components.services.storage.batch.when_durable(done)",
        "done()",
    ),
    Mutant(
        "a dead reader still waits",
        "qmd/operations/receive.py",
        "        for queue in self._queues.by_key.values():\n"
        "            for waiter in [waiter for waiter in queue.waiters "
        "if waiter.reader is reader]:\n"
        "                queue.waiters.remove(waiter)\n"
        "                self._services.timers.cancel(waiter)\n"
        "        why = ",
        "        why = ",
    ),
    Mutant(
        "a transaction of a dead client continues",
        "qmd/operations/transactions.py",
        "            if transaction.owner is owner and not transaction.is_committing:\n"
        "                self._abort",
        "            if False:\n                self._abort",
    ),
    Mutant(
        "only the first next number of a batch is stored",
        "storage/engine/outgoing_changes.py",
        "self._next_numbers.update(numbers)",
        "self._next_numbers = numbers | self._next_numbers",
    ),
    Mutant(
        "an ended message stays in the set of dying ones",
        "qmd/outcomes/undeliverable.py",
        "            queue.end_removal(each.dying.key)\n",
        "",
    ),
    Mutant(
        "refilled outgoing queues wake no link",
        "qmd/queues/outgoing_refill.py",
        "complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)\n        queue.link.wake()",
        "complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)",
    ),
    Mutant(
        "copies have no deadline to reach their queue",
        "qmd/operations/send_batch.py",
        "route, key, packet, batch, reach_by_s, confirm_by_s, discard=discard",
        "route, key, packet, batch, None, confirm_by_s, discard=discard",
    ),
    Mutant(
        "clients that wait for the disk are not resumed",
        "qmd/transfer/incoming.py",
        "                connection.resume_reading()",
        "                pass",
    ),
    Mutant(
        "expired express messages are sent",
        "qmd/queues/outgoing_queue.py",
        "        self.express.drop(key, kept, expires_at_s)\n        self.window.remove(key)",
        "        self.express.drop(key, kept, expires_at_s)",
    ),
    Mutant(
        "a commit of a transaction omits one message",
        "qmd/operations/transaction_receipts.py",
        '*(reader, queue, sorted(mine), b"", unanswered),',
        '*(reader, queue, sorted(mine)[1:], b"", unanswered),',
    ),
    Mutant(
        "moved messages count in their old queue",
        "qmd/operations/move.py",
        "        source.count_out(len(stored), size)\n",
        "",
    ),
    Mutant(
        "an owed acknowledgment of a dead message is not stored",
        "qmd/outcomes/removal.py",
        "                if self.is_owed(each.packet)\n            ],",
        "                if False\n            ],",
        "tests/unit/outcomes/test_removal.py",
    ),
    Mutant(
        "moved messages are lost in memory",
        "qmd/operations/move.py",
        "            source.forget([lookup_id])\n",
        "",
    ),
    Mutant(
        "messages of an aborted transaction are removed",
        "qmd/operations/transactions.py",
        '            self._abort(transaction, f"it could not be committed: {refusal.text}")\n'
        "            raise",
        "            raise",
    ),
    Mutant(
        "moved messages can be read before the commit",
        "qmd/operations/move.py",
        "        run = self._services.storage.batch.run(unit)\n",
        "        target.deliver([each.moved for each in stored])\n"
        "        run = self._services.storage.batch.run(unit)\n",
    ),
    Mutant(
        "a move resets the priority",
        "qmd/operations/move.py",
        "level = TRANSACTIONAL_LEVEL if is_transactional_ else PRIORITY_MAX - (packet[2] & 7)",
        "level = TRANSACTIONAL_LEVEL",
    ),
    Mutant(
        "a restart forgets the transmitted numbers",
        "qmd/core/sequence.py",
        "self._highest_transmitted = self._first_new - 1",
        "self._highest_transmitted = 0",
    ),
    Mutant(
        "an order ack is deferred without end",
        "qmd/core/sequence.py",
        "if self._ack_due is None or now - self._last_ack_at < self._settings.delay_max_s:",
        "if now - self._last_ack_at < self._settings.delay_max_s:",
    ),
    Mutant(
        "the arrival of a message is not acknowledged",
        "qmd/transfer/arrivals.py",
        "if message.properties.flags & POSITIVE_ARRIVAL:",
        "if False:",
    ),
    Mutant(
        "express messages that are put back are lost",
        "qmd/core/ready_window.py",
        "            self._insert(self._express, (key, item, size))\n"
        "        elif key in self._taken:",
        "            pass\n        elif key in self._taken:",
    ),
    Mutant(
        "the history lacks the last numbers",
        "storage/tables/message_id_history.py",
        "WHEN runs <> '' THEN runs || excluded.runs",
        "WHEN runs <> '' THEN runs",
    ),
    Mutant(
        "the release of a delayed message keeps its row",
        "qmd/maintenance/delayed_release.py",
        "self._services.storage.batch.run(partial(rows.delete, numbers=[row.number]))",
        "pass",
    ),
    Mutant(
        "the release of a delayed message is another commit than its deletion",
        "qmd/maintenance/delayed_release.py",
        "        self._delete(row)\n        self._send(new, way, numbers)",
        "        self._send(new, way, numbers)\n"
        "        self._services.loop.call_later(0.05, self._delete, row)",
    ),
    Mutant(
        "a cancellation does not wait for the release",
        "qmd/operations/delayed.py",
        "        self._released.clear()\n",
        "",
        "tests/integration/maintenance/test_delayed_release.py",
    ),
    Mutant(
        "delayed messages are due too early",
        "qmd/core/delay.py",
        "return Due(OWN, now.own_ms + delay_ms)",
        "return Due(OWN, now.own_ms + delay_ms // 2)",
    ),
    Mutant(
        "expiry does not check express messages",
        "qmd/maintenance/expiry.py",
        "ended = self._reap_express(now_s)",
        "ended = 0",
    ),
    Mutant(
        "expiry does not check the disk",
        "qmd/maintenance/expiry.py",
        "if earliest is not None and earliest < now_s:",
        "if False:",
    ),
    Mutant(
        "the log has wrong positions of received messages",
        "qmd/transfer/arrivals.py",
        "event.positions.append(transaction.sequence_number)",
        "event.positions.append(transaction.sequence_number + 1)",
    ),
    Mutant(
        "a reader that gave everything back is still listed",
        "qmd/queues/local_queue.py",
        "        if not mine:\n            self.takers.discard(reader)\n        if self.groups",
        "        if self.groups",
    ),
    Mutant(
        "no final ack for a message that ends in its queue",
        "qmd/outcomes/dead_letter.py",
        "            if result.final_ack is not None:\n"
        "                for_final_ack.append(packet)",
        "            pass",
    ),
    Mutant(
        "released rows are still counted",
        "qmd/transfer/release.py",
        "        queue.shrink(released.bytes)\n",
        "",
    ),
    Mutant(
        "a message acknowledged while it died is counted twice",
        "qmd/outcomes/undeliverable.py",
        "        if not packet and dying.sent is None:\n            return",
        "        if False:\n            return",
    ),
    Mutant(
        "owed acknowledgments are not sent at the start",
        "qmd/outcomes/source_acknowledgments.py",
        "            if is_whole:\n"
        "                self.send(row.packet, row.message_class, for_others=row.for_others)",
        "            if is_whole:\n                pass",
        "tests/integration/history/test_receipts.py",
    ),
    Mutant(
        "messages do not await confirmation after order acks",
        "qmd/transfer/confirmation.py",
        "count = sum(message.confirms for message in messages)",
        "count = 0",
    ),
    Mutant(
        "a token is recorded only with messages for other hosts",
        "qmd/operations/send_batch.py",
        "        if self._token:\n            result",
        "        if self._token and self.to_send:\n            result",
    ),
    Mutant(
        "a committed transaction stays open",
        "qmd/operations/transactions.py",
        "        self._forget(transaction)\n        self.committed_count += 1",
        "        self.committed_count += 1",
    ),
    Mutant(
        "units of work run before rows are deleted",
        "storage/engine/batch.py",
        "        if self._message_deletions:\n            messages.delete",
        "        if self._message_deletions and not self._units:\n            messages.delete",
    ),
    Mutant(
        "the history of long batches is lost",
        "storage/engine/incoming_changes.py",
        "history.remember(db, self._history)",
        "history.remember(db, [(each, numbers[:18]) for each, numbers in self._history])",
    ),
    Mutant(
        "copies of long batches are lost",
        "storage/engine/outgoing_changes.py",
        "outgoing.insert_copies(db, self._copies)",
        "outgoing.insert_copies(db, self._copies[:5])",
    ),
    Mutant(
        "relayed messages count as local ones",
        "qmd/queues/outgoing_queue.py",
        "        if self.others_usage is not None:\n            self.others_usage.bytes -= size",
        "        pass",
    ),
    Mutant(
        "a paused queue is not stored",
        "qmd/queues/outgoing_queues.py",
        "        queue.paused = paused\n        log",
        "        log",
    ),
    Mutant(
        "ids of plain messages are forgotten at once",
        "qmd/queues/message_id_history.py",
        "before_s = now_s - self._bounds.age_s",
        "before_s = (now_s := now_s + 10**9)",
    ),
    Mutant(
        "ids of a run of plain messages are not remembered",
        "qmd/transfer/arrivals.py",
        "            self._known_messages.add_run("
        "turn.connection, source, numbers[0], numbers[-1])",
        "            pass",
    ),
    Mutant(
        "a run of plain messages is accepted again",
        "qmd/transfer/acceptance.py",
        "            or self._known_messages.has_any(connection, source, run.message_numbers)\n",
        "",
        "tests/unit/transfer/test_acceptance.py",
    ),
    Mutant(
        "ids of refused messages are not remembered",
        "qmd/outcomes/nack.py",
        "            self._known_messages.add_refused(connection, source, number, message_class)\n",
        "            pass\n",
    ),
    Mutant(
        "order acks of a connection name accepted positions",
        "qmd/peers/pending_acks.py",
        "                stream.sequence.durable,",
        "                type(stream.sequence.durable)("
        "stream.sequence.accepted_id, stream.sequence.accepted_number),",
    ),
    Mutant(
        "a relay accepts a plain message twice",
        "qmd/transfer/relay_store.py",
        "            self._known_messages.add("
        "connection, message.user.source_queue_manager, number)",
        "            pass",
    ),
    Mutant(
        "messages given back serve no waiting reader",
        "qmd/operations/receive.py",
        "        if count:\n            self.serve(queue)",
        "        if False:\n            self.serve(queue)",
    ),
    Mutant(
        "a deleted queue keeps its waiters",
        "qmd/operations/queue_deletion.py",
        "            for waiter in waiters:\n"
        "                self._services.timers.cancel(waiter)\n"
        "                waiter.answer([])",
        "            pass",
    ),
    Mutant(
        "received messages do not expire in their queue",
        "qmd/transfer/arrivals.py",
        "return self._services.clock.deadline_s(left_s)",
        "return None",
    ),
    Mutant(
        "a refill of another position is used",
        "qmd/core/ready_window.py",
        "is_of_use = self._horizon == self._refill_from",
        "is_of_use = True",
    ),
    Mutant(
        "express bytes are still counted",
        "qmd/queues/express_messages.py",
        "        self._usage.express_bytes -= express_removed(packet)",
        "        pass",
    ),
    Mutant(
        "the end of a message in its queue is not acknowledged",
        "qmd/outcomes/dead_letter.py",
        "            if result.acknowledgment is not None and acknowledge:",
        "            if False:",
    ),
    Mutant(
        "received messages are left out of the final acks",
        "qmd/outcomes/dead_letter.py",
        "                if message_class_of(packet) not in SYSTEM_CLASSES:\n"
        "                    for_final_ack.append(packet)",
        "                pass",
    ),
    Mutant(
        "a rejected message becomes no dead letter",
        "qmd/outcomes/dead_letter.py",
        "                    kept.setdefault(self.dead_letter_queue(packet), []).append(packet)\n",
        "                    if message_class != MessageClass.NACK_RECEIVE_REJECTED:\n"
        "                        queue_of = self.dead_letter_queue(packet)\n"
        "                        kept.setdefault(queue_of, []).append(packet)\n",
    ),
    Mutant(
        "messages counted only on disk do not await confirmation",
        "qmd/transfer/release.py",
        "        queue.awaiting.add(len(kept), sum(each.size for each in kept))\n",
        "",
    ),
    Mutant(
        "the log lacks an order ack of an earlier pass",
        "qmd/transfer/release.py",
        "                event_rows.insert(db, awaiting_events(kept))\n",
        "",
    ),
    Mutant(
        "owed acknowledgments are sent at each start",
        "qmd/outcomes/source_acknowledgments.py",
        "            self._services.storage.batch.run(partial(owed_rows.remove, ids=[row.id]))\n\n",
        "            pass\n\n",
        "tests/integration/history/test_receipts.py",
    ),
    Mutant(
        "the refusal of a transactional message is not final",
        "qmd/transfer/acceptance.py",
        "refusal = self._known_messages.refusal(connection, source, user.message_number)",
        "refusal = None",
        "tests/unit/transfer/test_acceptance.py",
    ),
    Mutant(
        "the refusal of a late transactional message is final",
        "qmd/queues/message_id_history.py",
        "return None if found is _WITHOUT_FINAL_ACK else found",
        "return found",
        "tests/unit/transfer/test_acceptance.py",
    ),
    Mutant(
        "a failed read ends the deletion of a queue",
        "qmd/operations/queue_deletion.py",
        "if self._services.storage.failed.done() or self._services.lifecycle.stopping:",
        "if True:",
        "tests/integration/operations/test_purge.py",
    ),
    Mutant(
        "messages that final acks are ending are given up",
        "qmd/transfer/confirmation.py",
        "                if row.number not in self._settling:\n                    self._give_up(",
        "                if True:\n                    self._give_up(",
        "tests/integration/transfer/test_confirmation_interval.py",
    ),
    Mutant(
        "a message without confirmation becomes no dead letter",
        "qmd/transfer/confirmation.py",
        "if is_kept_as_dead(packet, discard=row.discard):",
        "if False:",
    ),
    Mutant(
        "local copies are added to the window without delivery",
        "qmd/operations/send_batch.py",
        "        done(ids)\n"
        "        for queue, messages in self.to_queues.items():\n"
        "            queue.deliver(messages)\n"
        "        if self.to_send",
        "        done(ids)\n"
        "        for queue, messages in self.to_queues.items():\n"
        "            for m in messages:\n"
        "                queue.window.add(m.lookup_id, m, len(m.packet), stored=True)\n"
        "        if self.to_send",
    ),
    Mutant(
        "ranges of long batches are lost",
        "storage/engine/outgoing_changes.py",
        "            outgoing.delete_ranges(db, self._ranges)",
        "            outgoing.delete_ranges(db, self._ranges[:1])",
    ),
    Mutant(
        "stored messages are acknowledged only with the next receipt",
        "qmd/core/session.py",
        "        elif stored:\n"
        "            incoming.acknowledge_within(self._timeouts.recoverable_ack_delay_s, now)",
        "",
    ),
    Mutant(
        "the log has wrong sizes",
        "qmd/events/recorder.py",
        "event.sizes += map(len, run)",
        "event.sizes += [len(each) + 1 for each in run]",
    ),
    Mutant(
        "a removed message stays linked",
        "qmd/core/sequence.py",
        "            in_flight.remove(number)\n            if not",
        "            if not",
    ),
    Mutant(
        "a pass continues after a restart",
        "qmd/core/sequence.py",
        "        self.in_flight.clear()\n        self._fresh = True\n        self._stop_timer()",
        "        self._fresh = True\n        self._stop_timer()",
    ),
    Mutant(
        "dropped express messages are still counted",
        "qmd/queues/outgoing_queue.py",
        "        self.window.remove(key)\n"
        "        self.others -= 1\n"
        "        self.shrink(len(packet))\n"
        "        return packet",
        "        self.window.remove(key)\n        self.others -= 1\n        return packet",
    ),
    Mutant(
        "a resumed queue does not wake its link",
        "qmd/queues/outgoing_queues.py",
        "session.resume()\n        queue.link.wake()\n\n    def kick",
        "session.resume()\n\n    def kick",
    ),
    Mutant(
        "moves are not counted",
        "storage/tables/messages.py",
        "move_count = move_count + 1",
        "move_count = move_count",
    ),
    Mutant(
        "the first position of a commit is stored",
        "qmd/transfer/arrivals.py",
        "turn.accepted[stream] = stream.sequence.accepted_id, number",
        "turn.accepted.setdefault(stream, (stream.sequence.accepted_id, number))",
    ),
    Mutant(
        "bytes of received messages are counted wrong",
        "qmd/queues/put.py",
        "    queue.messages += 1\n    queue.grow(len(packet))",
        "    queue.messages += 1\n    queue.grow(len(packet) - 1)",
    ),
    Mutant(
        "message ids are kept only in memory",
        "qmd/queues/message_id_history.py",
        "        unwritten = self._unwritten[history.key] = batch.incoming.remember_message_ids(",
        "        unwritten = self._unwritten[history.key] = []"
        " and batch.incoming.remember_message_ids(",
    ),
    Mutant(
        "a due order ack is not sent",
        "qmd/peers/pending_acks.py",
        "            self.owe_order_ack(stream)\n        self.arm",
        "            pass\n        self.arm",
    ),
    Mutant(
        "a refusal is not acknowledged",
        "qmd/outcomes/nack.py",
        "        if result.acknowledgment is not None:",
        "        if False:",
    ),
    Mutant(
        "ids of express messages are not remembered",
        "qmd/transfer/arrivals.py",
        "        if message.transaction is None:\n            # A reader",
        "        if message.transaction is None and user.flags & _EXPRESS_BITS:\n"
        "            # A reader",
    ),
    Mutant(
        "a deleted queue still gets messages by its old name",
        "qmd/transfer/local_destinations.py",
        "        self._queues_by_wire_name.clear()\n\n",
        "        pass\n\n",
    ),
    Mutant(
        "a read sees uncommitted data",
        "storage/engine/batch.py",
        "    def read(self, db: sqlite3.Connection) -> None:\n"
        '        """Run the reads of `read_after`, on the writer\'s thread."""\n'
        "        for read in self._reads:\n"
        "            read.run(db)",
        "    def read(self, db: sqlite3.Connection) -> None:\n"
        "        for read in self._reads[:1]:\n"
        "            read.run(db)",
    ),
    Mutant(
        "acknowledgments become dead letters",
        "qmd/core/disposition.py",
        "    if message.properties.message_class in SYSTEM_CLASSES:\n"
        "        if at_source or message_class & RECEPTION or not "
        "_needs_final_ack(message, message_class):\n"
        "            return NOTHING\n"
        "        return Consequences(final_ack=message_class)\n",
        "",
    ),
    Mutant(
        "a refill ignores what it missed",
        "qmd/core/ready_window.py",
        "        self._horizon = min(self._horizon, missed)\n        for key",
        "        for key",
    ),
    Mutant(
        "messages that a transaction rejects are received",
        "qmd/operations/transaction_receipts.py",
        "        receiver.reject(\n"
        '            *(reader, queue, lookup_ids, reason, b"", unanswered),\n'
        "            prepared=ends.rejections.get((queue, reason)),\n"
        "        )",
        "        pass",
    ),
    Mutant(
        "the log lacks messages lost at a stop",
        "qmd/events/recorder.py",
        "        for queue, messages in in_memory:\n            self.record(",
        "        for queue, messages in ():\n            self.record(",
    ),
    Mutant(
        "a relay has no limit",
        "qmd/transfer/relay.py",
        "if used + size <= self._services.settings.routing.relay_bytes_max:",
        "if True:",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "a full relay takes no acknowledgments",
        "qmd/transfer/relay.py",
        "used + size <= 2 * self._services.settings.routing.relay_bytes_max",
        "False",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "a relay has no limit of acknowledgments",
        "qmd/transfer/relay.py",
        "used + size <= 2 * self._services.settings.routing.relay_bytes_max",
        "True",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "a relay whose computer is full takes no acknowledgments",
        "qmd/transfer/acceptance.py",
        "            and is_acknowledgment(message)\n",
        "            and False\n",
        "tests/integration/transfer/test_relay.py",
    ),
    Mutant(
        "a full disk limits no relayed acknowledgments",
        "storage/engine/reserve.py",
        "self._watermark_bytes // 2",
        "0",
        "tests/simulation/test_queue_managers.py",
    ),
    Mutant(
        "a full disk takes no relayed acknowledgments",
        "qmd/queues/quotas.py",
        "lets_leave=True",
        "lets_leave=False",
        "tests/simulation/test_queue_managers.py",
    ),
    Mutant(
        "final acks leave before the session ack, although the peer lacks room",
        "qmd/peers/pending_acks.py",
        "if connection.offers.lack is not None and (owed or connection.owed_final_acks):",
        "if False:",
        "tests/simulation/test_queue_managers.py",
    ),
    Mutant(
        "messages are offered at once to a peer that lacks room",
        "qmd/peers/offers.py",
        "return min(last + QUIET_S, opened_at + QUIET_WAIT_S_MAX)",
        "return opened_at",
        "tests/unit/peers/test_offers.py",
    ),
    Mutant(
        "a start restores no reservations",
        "qmd/bulk/readers.py",
        "            if held is not None:\n                held.queue.reserved",
        "            if False:\n                held.queue.reserved",
    ),
    Mutant(
        "a release uses positions again",
        "storage/tables/reservations.py",
        "SET position = next_number - 1 WHERE id = ?",
        "SET position = position WHERE id = ?",
        "tests/integration/bulk/test_reservations.py",
    ),
    Mutant(
        "a consumed position is not stored",
        "storage/tables/reservations.py",
        "SET position = max(position, ?),",
        "SET position = max(position, ? * 0),",
    ),
    Mutant(
        "a partial consumption loses the message after it",
        "storage/tables/reservations.py",
        "SET messages = id - ?1 WHERE",
        "SET messages = id - ?1 - 1 WHERE",
    ),
    Mutant(
        "a shared reader passes messages that are taken",
        "qmd/bulk/reserve_next.py",
        "stop_at_busy=held.shared",
        "stop_at_busy=False",
    ),
    Mutant(
        "two shared readers store one express message",
        "qmd/queues/reservations.py",
        " and each not in self._storing",
        "",
    ),
    Mutant(
        "purges, moves and expiry do not spare reserved messages",
        "qmd/queues/local_queue.py",
        "return lookup_id in self.taken or self.reserved.has(lookup_id)",
        "return lookup_id in self.taken",
    ),
    Mutant(
        "a rejected message moves the position",
        "qmd/core/sequence.py",
        "        if accepted:\n            self.accepted_id = sequence_id",
        "        if accepted or number > self.accepted_number:\n"
        "            self.accepted_id = sequence_id",
    ),
    Mutant(
        "a lock ends at a quarter of its time",
        "qmd/operations/locks.py",
        "lock.ends_at = self._services.loop.time() + lock_s",
        "lock.ends_at = self._services.loop.time() + lock_s / 4",
    ),
    Mutant(
        "a message for a client that has left ends the daemon",
        "qmd/operations/locks.py",
        "            if not answer.done():  # a cancelled request gets",
        "            if True:  # a cancelled request gets",
        "tests/integration/operations/test_locks.py",
    ),
)
