"""Settings of hypothesis: random on a developer's machine, deterministic in CI.

`Shares` distributes the tests over the workers of pytest-xdist.

"""

import gc
import os
from typing import Any

import pytest
from hypothesis import settings

# No deadlines: the time of an example depends more on the machine than on the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

#: Slow and independent tests.  The other tests of a file stay together, with its fixtures.
EACH_ALONE = (
    *("tests/crash/", "tests/netns/", "tests/simulation/"),
    *("tests/process/test_transactions.py", "tests/process/test_two_phase.py"),
)
#: One Spark session is enough for tests: it takes seconds to start, and a gigabyte.
ALL_TOGETHER = ("tests/pipeline/",)
#: They begin first: one of them that began late would run alone at the end.
LONGEST = (*ALL_TOGETHER, "tests/packages/test_debian.py")
#: Files among them that need no session, or start processes with their own: another worker may run
#: them meanwhile.
WITHOUT_SESSION = tuple(
    f"tests/pipeline/test_{name}.py"
    for name in (
        *("cluster", "filters", "finish", "java", "options", "own_packages"),
        *("report", "ship", "source_remote", "stream_parts", "stream_reader"),
        *("bodies", "connect", "watch", "airflow", "first_audit", "pages_browser"),
        *("duckdb_sql", "jobs_parts", "jobs_dead_runs", "jobs_real", "results"),
        *("nightly", "odd_messages", "s3", "slo", "dying_runs", "jobs_again", "jobs_broken"),
    )
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
            for folder in ALL_TOGETHER:
                if nodeid.startswith(folder) and not nodeid.startswith(WITHOUT_SESSION):
                    return folder
            return nodeid if nodeid.startswith(EACH_ALONE) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Shares(config, log)
