"""Fixtures: brokers, daemons and bridges that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import KafkaServer, NatsServer, RabbitServer
from tests.process.conftest import remote
from tests.process.harness import Daemon, Hosts

__all__ = ["remote"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/bridge" in str(item.path):
            item.add_marker(pytest.mark.process)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    pytest.importorskip("nats")
    server = NatsServer(tmp_path / "nats")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[RabbitServer]:
    pytest.importorskip("proton")
    server = RabbitServer(tmp_path / "rabbit")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    pytest.importorskip("confluent_kafka")
    server = KafkaServer(tmp_path / "kafka")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def bridges(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., Bridges]]:
    """Return a function that makes the bridges of a file; they are killed at the end."""
    made: list[Bridges] = []

    def make(**definitions: dict[str, Any]) -> Bridges:
        made.append(Bridges(daemon, tmp_path, **definitions))
        return made[-1]

    yield make
    for each in made:
        each.kill()
