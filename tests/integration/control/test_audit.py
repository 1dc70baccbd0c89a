"""Records of operators' requests: their commits."""

from __future__ import annotations

import json
import os

import pytest

from qmd.control_protocol import audit
from qmd.control_protocol import operations as operator
from storage.engine import writer
from tests.integration.control.test_local_users import user
from tests.integration.managers import Hosts, hosted
from tests.patience import END_S

REQUESTS = 20


@hosted
async def test_a_request_of_an_operator_costs_one_commit_and_its_result_is_shown_at_once(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    operators = await user(host, os.getuid())
    await operators.done(operator.CreateQueue, "first")
    before = sum(host.storage.figures.commits.counts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PATIENCE_S", END_S)
        for number in range(REQUESTS):
            await operators.done(operator.CreateQueue, f"q{number}")
        commits = sum(host.storage.figures.commits.counts) - before
        shown = await operators.done(audit.AuditEntries, -2)

    assert commits < 1.5 * REQUESTS
    request, result = (json.loads(each[1]) for each in shown["entries"])
    assert (request["verb"], result["kind"], result["result"]) == ("create_queue", "result", "done")
    operators.close()
