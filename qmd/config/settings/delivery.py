"""Delivery and transactions."""

from __future__ import annotations

from dataclasses import dataclass

from qmd.config.settings.declaration import setting
from qmd.config.value_types import Duration, Durations, Flag, OptionalDuration, Size, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Timers and windows of the sessions and transactional sequences."""

    time_to_reach_queue_s: float = setting(
        Duration("1s", "49710d"),
        "4d",
        "Default time-to-reach-queue of a message.",
    )
    downtime_max_s: float = setting(
        Duration("0s", "49710d"),
        "30d",
        "For how long the queue manager may have been down, by the wall clock of a computer"
        " that was rebooted. A longer time is not counted against the lifetimes of messages.",
    )
    window_size: int = setting(
        Whole(1, 32767), 64, "Messages that a peer may send before we acknowledge one."
    )
    wide_window_size: int = setting(
        Whole(1, 32767),
        2048,
        "The same for a peer that is a queue manager of qmd. It begins with `window_size` of them,"
        " and sends more as they are acknowledged. A `window_size` below 64 holds for all peers.",
    )
    ack_timeout_s: float = setting(
        Duration("10ms", "120s"),
        "20s",
        "How long we wait for a session ack. The specification allows 20s to 120s.",
    )
    recoverable_ack_timeout_min_s: float = setting(
        Duration("1ms", "120s"),
        "500ms",
        "The least delay of session acks of recoverable messages that we announce; the "
        "specification allows 500ms to 120s.",
    )
    acknowledge_at_once: bool = setting(
        Flag(), True, "Whether acknowledgments are sent as soon as their messages are committed."
    )
    order_ack_timeout_s: float = setting(
        Duration("1ms", "60s"),
        "500ms",
        "How long an order ack waits for more messages when it does not leave at once.",
    )
    order_ack_delay_max_s: float = setting(
        Duration("1ms", "10m"), "10s", "How long a busy sequence may postpone its order ack."
    )
    resend_s: tuple[float, ...] = setting(
        Durations(Duration("10ms", "7d"), 32),
        ["30s", "30s", "30s", "5m", "5m", "5m", "30m", "30m", "30m", "6h"],
        "When unacknowledged transactional messages are sent again; the last one repeats.",
    )
    connect_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long connecting to a peer may take."
    )
    retry_first_s: float = setting(
        Duration("1ms", "1h"), "500ms", "The pause after the first failed connection; it doubles."
    )
    retry_max_s: float = setting(Duration("1ms", "1d"), "30s", "The longest such pause.")
    away_retry_s: float = setting(
        Duration("10ms", "1d"),
        "1500ms",
        "The longest pause from one attempt to the next for a host that does not answer, if"
        " `retry_first` is not longer. Many such hosts share 50 attempts a second.",
    )
    idle_close_s: float = setting(
        Duration("10ms", "1d"),
        "300s",
        "A session without messages for this time is closed.",
    )
    message_id_history_entries: int = setting(
        Whole(1, 1_000_000),
        10_000,
        "Plain messages of each source that are remembered at least, to notice duplicates; those "
        "with neighbouring numbers count as one.",
    )
    message_id_history_age_s: float = setting(
        Duration("1s", "7d"),
        "30m",
        "How long each is remembered. The last 1000 of a source are remembered for a week beyond "
        "its last one.",
    )
    xact_delay_receive_nack_s: float | None = setting(
        OptionalDuration("0s", "49710d"),
        "",
        "How long after its time-to-be-received the confirmation of a transactional message is "
        "awaited. Empty: as long again, or its time-to-reach-queue where that was set and is "
        "shorter.",
    )
    xact_dead_letter_always: bool = setting(
        Flag(),
        False,
        "Whether every transactional message asks for dead-lettering, and with it for confirmation "
        "of its receipt, regardless of its application.",
    )
    heartbeat_s: float = setting(
        Duration("0s", "1d"),
        "0s",
        "The interval of heartbeats through each destination, which measure the time of a message;"
        " see docs/metrics.md. 0s: none.",
    )
    insecure_nacks: bool = setting(
        Flag(),
        False,
        "Whether negative acknowledgments that disclose our queues and keys are sent, [MS-MQQB]"
        " 3.1.1.3.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsSettings:
    """Transactions of applications, which are in memory until they commit."""

    idle_s: float = setting(
        Duration("100ms", "7d"),
        "5m",
        "A transaction without a request for this time is aborted.",
    )
    live_max: int = setting(Whole(1, 1_000_000), 10_000, "Transactions under way at once.")
    messages_bytes_max: int = setting(
        Size("1KiB", "1GiB"), "64MiB", "Bodies of the messages that one of them sends."
    )
    outcome_age_s: float = setting(
        Duration("1m", "30d"),
        "1h",
        "How long the result of a request or transaction is kept, for a client that asks again.",
    )
    outcomes_max: int = setting(
        Whole(1, 1_000_000_000),
        10_000_000,
        "Results of the requests and transactions of each client that are kept at once; further "
        "requests that need one are refused. Administrators have no limit.",
    )
    once_max: int = setting(
        Whole(1, 1_000_000_000),
        10_000_000,
        "Sends with a key of each client, of which the results are kept at once; further ones are "
        "refused. Administrators have no limit.",
    )
