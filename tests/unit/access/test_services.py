"""The principal `service:NAME` of a program: a name that systemd, and nothing else, has given."""

from __future__ import annotations

import pytest

from qmd.access.local_users import service_in


@pytest.mark.parametrize(
    ("group", "service"),
    [
        ("/system.slice/billing.service", "billing.service"),
        ("/system.slice/system-qmd.slice/qmd-service@a.service", "qmd-service@a.service"),
        ("/system.slice/billing.service/payload/worker", "billing.service"),
        ("/system.slice", ""),
        ("/system.slice/billing.scope", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/billing.service", ""),
        ("", ""),
    ],
)
def test_the_unit_below_the_slices_counts(group: str, service: str) -> None:
    assert service_in(group) == service


@pytest.mark.parametrize(
    "group",
    [
        "/system.slice/container-manager.service/billing.service",
        "/system.slice/docker-0af3.scope/system.slice/billing.service",
        "/system.slice/container-manager.service/system.slice/billing.service",
        "/lxc/a/system.slice/billing.service",
    ],
)
def test_groups_inside_of_a_delegated_one_are_no_services(group: str) -> None:
    assert service_in(group) != "billing.service"
