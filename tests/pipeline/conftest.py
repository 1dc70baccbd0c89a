"""One Spark session for all tests of a worker; without Spark or Java they are skipped.

With several workers, the scheduler in tests/conftest.py gives all tests that need the session to
one worker, so only one session is started.

"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import tests_with_session

SETTINGS = {
    # For short jobs, fast compilation matters more than fast execution.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.stateStore.stateSchemaCheck": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" not in getattr(item, "fixturenames", ()):
            continue
        file, _, test = item.nodeid.partition("::")
        if test.partition("[")[0] not in tests_with_session(file):
            raise pytest.UsageError(f"{item.nodeid} needs the session, and does not name `spark`")
        if item.get_closest_marker("timeout") is None:
            # On a busy machine the session alone takes a minute.
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def engine() -> Iterator[Any]:
    """Yield the embedded engine."""
    pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")
    from pipeline.engines.local import LocalEngine

    with LocalEngine() as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a session in local mode, with its folders among those of the tests."""
    pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")
    from pipeline.spark.session import NoJava, require_java, spark_session

    try:
        require_java()
    except NoJava as none:
        pytest.skip(str(none))
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    with quiet_python():
        session = spark_session(
            "tests",
            "local[2,4]",  # a task is tried up to four times
            conf={
                **SETTINGS,
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                # Each query in plain text, as a history server shows it.
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": str(folder / "events"),
                "spark.eventLog.compress": "false",
            },
        )
    yield session
    session.stop()


@contextlib.contextmanager
def quiet_python() -> Iterator[None]:
    """Remove the debug mode of the tests from Java, and from its Python processes."""
    kept = os.environ.pop("PYTHONASYNCIODEBUG", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["PYTHONASYNCIODEBUG"] = kept
