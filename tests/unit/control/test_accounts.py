"""Accounts: the one with much work is served after the others, as long as it has work."""

from __future__ import annotations

from qmd.control.accounts import (
    ACTIVE_S,
    BUSY_S,
    BUSY_TURN_S,
    REQUEST_S,
    SHARE,
    SHARED_TURN_S,
    TURN_S,
    WORK_MAX_S,
    Account,
    Accounts,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def two_accounts() -> tuple[Clock, Account, Account]:
    clock = Clock()
    accounts = Accounts(clock)
    return clock, accounts.open("busy"), accounts.open("light")


def work(account: Account, seconds: float) -> None:
    account.spend(int(seconds / REQUEST_S) + 1, 0, 0.0)


def test_an_account_alone_never_waits() -> None:
    _, busy, _ = two_accounts()

    work(busy, 10)

    assert not busy.must_wait
    assert busy.turn_s == TURN_S


def test_an_account_with_much_work_waits_while_another_one_is_active() -> None:
    clock, busy, light = two_accounts()

    work(busy, 2 * BUSY_S)
    light.received()

    assert busy.must_wait
    assert busy.turn_s == BUSY_TURN_S
    assert not light.must_wait
    assert light.turn_s == SHARED_TURN_S
    clock.now += 1.1 * ACTIVE_S
    assert not busy.must_wait


def test_it_stays_behind_as_long_as_it_uses_more_than_its_share() -> None:
    clock, busy, light = two_accounts()
    work(busy, 2 * BUSY_S)

    for _ in range(1000):
        clock.now += 0.01
        light.received()
        work(busy, 1.1 * SHARE * 0.01)
        assert busy.must_wait


def test_an_hour_of_work_is_soon_forgotten() -> None:
    clock, busy, light = two_accounts()
    for _ in range(100):
        work(busy, 36)

    clock.now += 1.01 * WORK_MAX_S / SHARE
    light.received()

    assert not busy.must_wait


def test_the_time_of_expensive_requests_counts() -> None:
    _, busy, light = two_accounts()

    busy.spend(1, 0, 2 * BUSY_S)
    light.received()

    assert busy.must_wait
