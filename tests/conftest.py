"""How hypothesis works here: by chance on a developer's machine, the same every time in CI.

And what several workers of pytest-xdist share out: see `Shares`.
"""

import os
from typing import Any

import pytest
from hypothesis import settings

# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

#: Tests that take long and stand alone.  Others keep together what their file has set up.
EACH_ALONE = (
    *("tests/crash/", "tests/netns/", "tests/simulation/"),
    *("tests/process/test_transactions.py", "tests/process/test_two_phase.py"),
)
#: One Spark is enough: it takes seconds to start, and a gigabyte.
ALL_TOGETHER = ("tests/pipeline/",)
#: Files among them that start neither Spark nor Java: another worker may run them meanwhile.
WITHOUT_SPARK = tuple(
    f"tests/pipeline/test_{name}.py"
    for name in ("filters", "finish", "options", "report", "ship", "source_remote", "stream_parts")
)


@pytest.hookimpl(optionalhook=True)  # there may be no xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):  # type: ignore[misc]
        """What one worker does in one go, in the order of the folders: the long ones first."""

        def _split_scope(self, nodeid: str) -> str:
            for folder in ALL_TOGETHER:
                if nodeid.startswith(folder) and not nodeid.startswith(WITHOUT_SPARK):
                    return folder
            return nodeid if nodeid.startswith(EACH_ALONE) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Shares(config, log)
