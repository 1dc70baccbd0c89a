"""Fixtures of the process tests: real daemons, independent peers, always cleaned up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.process.harness import Daemon, Hosts, empty_queues
from tests.process.remote import RemoteQueueManager


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/process" in str(item.path):
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows what the daemons logged."""
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
def hosts() -> Iterator[Hosts]:
    """Whatever one test starts."""
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def shared_hosts() -> Iterator[Hosts]:
    """Whatever the tests of one file share."""
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def clean(request: pytest.FixtureRequest) -> Callable[[Daemon], Daemon]:
    """A daemon that several tests share, as if nothing had happened before.

    Tests leave nothing behind, but one that failed may have: then the daemon is started again,
    dead or dying or not, and its queues are emptied.
    """

    def clean(daemon: Daemon) -> Daemon:
        failed = request.session.testsfailed
        if failed != _failed_before.setdefault(daemon, failed):
            daemon.restart()
            empty_queues(daemon)
            _failed_before[daemon] = failed
        return daemon

    return clean


_failed_before: dict[Daemon, int] = {}


@pytest.fixture
def remote() -> Iterator[RemoteQueueManager]:
    """An independent queue manager somewhere else."""
    with RemoteQueueManager() as remote:
        yield remote
