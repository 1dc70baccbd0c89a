"""A real door for metrics in a process of its own, and scrapes of it."""

from __future__ import annotations

import http.client
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.patience import END_S
from tests.process.harness import Daemon, free_port
from tests.process.http_door import HttpDoor

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class MetricsDoor(HttpDoor):
    """A door for metrics of a daemon."""

    name = "metrics"

    def __init__(self, daemon: Daemon, **settings: Any) -> None:
        super().__init__(daemon)
        self.port = free_port()
        daemon.configure({"metrics": {"port": self.port, **settings}})

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        """Make a request; return the status and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        try:
            connection.request("GET", path, headers={"accept": OPENMETRICS, **headers})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def scrape(self) -> Scrape:
        """Return the values of a scrape, which a strict parser of OpenMetrics has read."""
        status, text = self.get()
        assert status == 200, text
        return Scrape(text)


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of the one sample with this name that has these labels."""
        found = self.all(name, **labels)
        assert len(found) == 1, (name, labels, found)
        return float(found[0].value)

    def all(self, name: str, **labels: str) -> list[Any]:
        """Return the samples with a name and labels."""
        return [
            each
            for each in self.samples
            if each.name == name and labels.items() <= each.labels.items()
        ]
