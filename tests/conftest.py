"""Settings of hypothesis: random on a developer's machine, deterministic in CI.

`Shares` distributes the tests over the workers of pytest-xdist.

"""

import ast
import gc
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadlines: the time of an example depends more on the machine than on the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

ROOT = Path(__file__).resolve().parents[1]
#: Slow and independent tests.  The other tests of a file stay together, with its fixtures.
EACH_ALONE = (
    *("tests/crash/", "tests/netns/", "tests/process/test_transactions.py"),
    *("tests/process/test_two_phase.py", "tests/simulation/test_queue_managers.py"),
    *("tests/simulation/test_restores.py", "tests/simulation/test_strict_host.py"),
)
#: One Spark session is enough for tests: it takes seconds to start, and a gigabyte.  Its tests make
#: the longest share; tests of the folder that do without it run beside it.
OF_SPARK = "tests/pipeline/"
#: They begin first: one of them that began late would run alone at the end.
LONGEST = (OF_SPARK, "tests/packages/test_debian.py")


@cache
def tests_with_session(file: str) -> frozenset[str]:
    """Return the names of the tests in a file that take the fixture `spark` themselves."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef)
        and "spark" in {argument.arg for argument in each.args.args}
    )


def pytest_collection_finish() -> None:
    """Keep the collector of garbage away from the collected tests, which live to the end.

    It would look at half a million objects whenever it looks at all.  It looks less often too: it
    took a third of the time of tests that read the whole source.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries report what is left at the end as leaked


_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Free what a failed test has left open, which would make a later test fail by a warning.

    The traceback keeps the variables of the test, and is in a circle with them.
    """
    if nodeid in _failed:
        for name in ("last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.hookimpl(optionalhook=True)  # xdist may be missing
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):  # type: ignore[misc]
        """The tests of one worker at a time, in the order of the folders: the slow ones first.

        The longest shares begin before all others, so that all workers end at about the same time.
        """

        def _assign_work_unit(self, node: Any) -> None:
            for share in reversed(LONGEST):
                if share in self.workqueue:
                    self.workqueue.move_to_end(share, last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.startswith(OF_SPARK) and test.partition("[")[0] in tests_with_session(file):
                return OF_SPARK
            return nodeid if nodeid.startswith(EACH_ALONE) else file

    config.option.loadscopereorder = False
    return Shares(config, log)
