"""Sessions, the brake for wrong passwords, the printed link and the file of users."""

import asyncio
import stat

import pytest

from qmd.console.logins import (
    FAILURES_MAX,
    FREE_FAILURES,
    LINK_S,
    SESSIONS_MAX,
    SESSIONS_OF_NAME_MAX,
    WAIT_MAX_S,
    Brake,
    Link,
    Passwords,
    Sessions,
)
from qmd.console.roles import Identity, Role, parse_role
from qmd.console.users import User, Users, change_users
from qmd.doors.users import BadUsers, verifier

ANN = Identity("ann", Role.OPERATOR)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_it_is_idle_and_when_it_is_old():
    clock = Clock()
    sessions = Sessions(clock, idle_s=10, age_s=25)
    key = sessions.begin(ANN).key

    for clock.now in (9.0, 18.0, 24.0):
        assert sessions.find(key) is not None
    clock.now = 26.0
    assert sessions.find(key) is None

    other = sessions.begin(ANN).key
    clock.now = 37.0
    assert sessions.find(other) is None


def test_sessions_are_bounded():
    sessions = Sessions(Clock(), idle_s=10, age_s=10)
    first = sessions.begin(ANN)
    for _ in range(SESSIONS_OF_NAME_MAX):
        sessions.begin(ANN)
    assert sessions.find(first.key) is None

    for number in range(SESSIONS_MAX + 10):
        sessions.begin(Identity(str(number), Role.VIEWER))
    assert len(sessions._sessions) == SESSIONS_MAX


def test_each_session_has_secrets_of_its_own():
    sessions = Sessions(Clock(), idle_s=10, age_s=10)
    one, other = sessions.begin(ANN), sessions.begin(ANN)

    assert one.fits(one.csrf)
    assert not one.fits(other.csrf)
    assert not one.fits("")
    assert len({one.key, other.key, one.csrf, other.csrf}) == 4


def test_the_brake_waits_twice_as_long_after_each_failure():
    clock = Clock()
    brake = Brake(clock)
    waits = []
    for _ in range(FREE_FAILURES + 12):
        brake.failed("address:x")
        waits.append(brake.wait_s("address:x"))

    assert waits[: FREE_FAILURES - 1] == [0.0] * (FREE_FAILURES - 1)
    assert waits[FREE_FAILURES - 1 : FREE_FAILURES + 3] == [1.0, 2.0, 4.0, 8.0]
    assert max(waits) == WAIT_MAX_S
    assert brake.wait_s("address:y") == 0.0
    brake.succeeded("address:x")
    assert brake.wait_s("address:x") == 0.0


def test_the_brake_forgets_the_oldest():
    brake = Brake(Clock())
    for number in range(FAILURES_MAX + 5):
        brake.failed(str(number))

    assert len(brake._failures) == FAILURES_MAX


def test_a_link_works_once_and_for_some_time():
    clock = Clock()
    link = Link(ANN, clock)

    assert link.use("wrong") is None
    assert link.use(link.key) is ANN
    assert link.use(link.key) is None

    late = Link(ANN, clock)
    clock.now = LINK_S + 1
    assert late.use(late.key) is None


def test_users_are_written_and_read(tmp_path):
    path = tmp_path / "users"
    proof = verifier(b"secret")

    assert change_users(path, "ann", User(Role.OPERATOR, proof)) is False
    assert change_users(path, "ann", User(Role.VIEWER, proof)) is True

    assert Users(path).all() == {"ann": User(Role.VIEWER, proof)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert change_users(path, "ann", None) is True
    assert Users(path).all() == {}


@pytest.mark.parametrize("line", ["ann", "ann:king:x", "ann:viewer:x", "a,b:viewer:x"])
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "users"
    path.write_text(f"# comment\n{line}\n")

    with pytest.raises(BadUsers, match="line 2"):
        Users(path).all()


def test_a_name_for_a_line_of_its_own_is_refused(tmp_path):
    with pytest.raises(BadUsers):
        change_users(tmp_path / "users", "ann\nbob", User(Role.VIEWER, verifier(b"x")))


def test_a_password_is_checked_and_a_changed_one_ends_its_logins(tmp_path):
    path = tmp_path / "users"
    change_users(path, "ann", User(Role.OPERATOR, verifier(b"secret")))
    passwords = Passwords(Users(path))

    async def check(name: str, password: str) -> Identity | None:
        return await passwords.check(name, password)

    assert asyncio.run(check("ann", "wrong")) is None
    assert asyncio.run(check("bob", "secret")) is None
    assert asyncio.run(check("ann", "x" * 5000)) is None
    found = asyncio.run(check("ann", "secret"))
    assert found is not None
    assert found.role is Role.OPERATOR
    assert passwords.is_current(found)

    change_users(path, "ann", User(Role.OPERATOR, verifier(b"another")))
    assert not passwords.is_current(found)
    change_users(path, "ann", None)
    assert not passwords.is_current(found)


def test_roles():
    assert parse_role("operator") is Role.OPERATOR
    with pytest.raises(ValueError, match="king"):
        parse_role("king")


def test_an_identity_does_not_show_its_token():
    assert "secret-token" not in repr(Identity("t", Role.VIEWER, token="secret-token"))
