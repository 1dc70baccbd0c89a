"""A real Active Directory for the tests: one template, and a copy of it for each module."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.directory.domain_controller import DomainController, why_not
from tests.directory.hosts import Hosts, two_computers


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a provisioned domain that is never started; several workers make it once."""
    if problem := why_not():
        pytest.skip(f"no Active Directory: {problem}")
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    folder = shared / "domain-template"
    with (shared / "domain-template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "address").exists():
            DomainController(folder).provision()
    return folder


@pytest.fixture(scope="module")
def controller(
    template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DomainController]:
    """Yield a running domain controller with an empty domain."""
    controller = DomainController(tmp_path_factory.mktemp("domain") / "dc")
    controller.copy(template)
    controller.start()
    yield controller
    controller.close()


@pytest.fixture(scope="module")
def hosts(
    controller: DomainController, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hosts]:
    """Yield two computers of the domain that run qmd."""
    with contextlib.ExitStack() as stack:
        yield two_computers(controller, tmp_path_factory.mktemp("hosts"), stack)
