"""Fixtures of the process tests: real daemons and independent peers, with their clean-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.process.bystander import Bystander
from tests.process.harness import Daemon, Hosts, empty_queues
from tests.process.remote import RemoteQueueManager


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/process" in str(item.path):
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs of the daemons to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        arguments = getattr(item, "funcargs", {})
        for name in ("hosts", "shared_hosts"):
            if isinstance(arguments.get(name), Hosts):
                report.sections.append((f"daemons of {name}", arguments[name].logs()))
        if isinstance(arguments.get("daemon"), Daemon):
            report.sections.append(("daemon", arguments["daemon"].tail()))


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Yield the processes of one test."""
    hosts = Hosts(warm=_is_warm(request))
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def shared_hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Yield the processes that the tests of one file share."""
    hosts = Hosts(warm=_is_warm(request))
    try:
        yield hosts
    finally:
        hosts.close()


def _is_warm(request: pytest.FixtureRequest) -> bool:
    """Return whether forks of one warm process are good enough for the test."""
    return request.node.get_closest_marker("program") is None


@pytest.fixture
def clean(request: pytest.FixtureRequest) -> Callable[[Daemon], Daemon]:
    """Return a function that gives a shared daemon in its initial state.

    A test leaves no messages behind unless it fails.  After a failure the daemon is restarted,
    in whatever state it is, and its queues are emptied.
    """

    def clean(daemon: Daemon) -> Daemon:
        failed = request.session.testsfailed
        if failed != _failed_before.setdefault(daemon, failed):
            daemon.restart()
            empty_queues(daemon)
            _failed_before[daemon] = failed
        return daemon

    return clean


@pytest.fixture
def daemon(shared: Daemon, clean: Callable[[Daemon], Daemon]) -> Daemon:
    """Return the daemon `shared` of the test's file, in its initial state."""
    return clean(shared)


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Bystander]:
    """Yield a bystander; all of its messages must be in `side` after the test, in order."""
    bystander = Bystander(daemon)
    try:
        yield bystander
    finally:
        delivered = bystander.finish()
    assert daemon.alive
    assert delivered > 0
    assert [int(text) for text in daemon.bodies("side")] == list(range(delivered))


_failed_before: dict[Daemon, int] = {}


@pytest.fixture
def remote() -> Iterator[RemoteQueueManager]:
    """Yield an independent remote queue manager."""
    with RemoteQueueManager() as remote:
        yield remote
