"""Errors of the data source: the host, the reason and the remedy come first.

Each fault is real: another daemon's token and certificate, a daemon of another version, a closed
port.

"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from qmd.client import blocking
from tests.process import harness
from tests.process.harness import Daemon, free_port
from tests.process.remote_daemon import Remote

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl is needed to make certificates"
    ),
]

OF_ANOTHER_VERSION = (
    "import sys; from qmd.control_protocol import messages; messages.VERSION += 1;"
    " from qmd.cli import main; sys.exit(main())"
)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    remote = Remote(tmp_path_factory.mktemp("remote"))
    with blocking.connect(remote.folder / "qmd" / "qmd.sock") as qm:
        qm.create_queue("orders")
    yield remote
    remote.daemon.terminate()


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Remote:
    """Yield another queue manager, with an authority and tokens of its own."""
    outsider = Remote(tmp_path_factory.mktemp("stranger"))
    outsider.daemon.terminate()
    return outsider


def given(remote: Remote, token: Path, **options: Any) -> dict[str, str]:
    return {
        "endpoint": f"tls://localhost:{remote.port}",
        "caFile": str(remote.ca_file),
        "tokenFile": str(token),
        "queue": "orders",
        **{name: str(value) for name, value in options.items()},
    }


def reported(error: BaseException) -> str:
    """Return the first line that names qmd, with Spark's lines before it."""
    text = str(error).partition("\n SQLSTATE")[0].partition("\nJVM stacktrace")[0]
    assert "Traceback" not in text
    assert "\n\tat " not in text.partition("qmd at ")[0]
    return text[text.index("qmd at ") :].partition("\n")[0]


def reading(spark: Any, options: dict[str, str]) -> str:
    with pytest.raises(Exception, match="qmd at") as failure:
        spark.read.format("qmd").options(**options).load().count()
    return reported(failure.value)


def writing(spark: Any, options: dict[str, str]) -> str:
    rows = spark.range(1).selectExpr("cast(id AS string) AS body")
    with pytest.raises(Exception, match="qmd at") as failure:
        rows.write.format("qmd").mode("append").options(**options).save()
    return reported(failure.value)


def test_an_unknown_token_is_reported_at_once_to_reader_and_writer(
    spark: Any, remote: Remote, outsider: Remote
) -> None:
    options = given(remote, outsider.token("read", "write", name="stranger"))
    place = f"qmd at tls://localhost:{remote.port}: "

    for text in (reading(spark, options), writing(spark, options)):
        assert text.startswith(place)
        assert "token" in text
        assert "QM-" in text


def test_a_certificate_of_another_authority_is_reported_with_the_remedy(
    spark: Any, remote: Remote, outsider: Remote
) -> None:
    token = remote.token("read", name="trusting")

    text = reading(spark, given(remote, token, caFile=outsider.ca_file))

    assert text.startswith(f"qmd at tls://localhost:{remote.port}: the certificate of ")
    assert "name the authority that signed it" in text


def test_a_closed_port_is_reported_with_host_and_port(spark: Any, remote: Remote) -> None:
    endpoint = f"tls://localhost:{free_port()}"
    token = remote.token("read", "write", name="nobody")
    options = given(remote, token, endpoint=endpoint, reconnectSeconds=0)

    for text in (reading(spark, options), writing(spark, options)):
        assert text.startswith(f"qmd at {endpoint}: ")
        assert "cannot be reached" in text
        assert "[remote] enabled" in text


def test_a_missing_queue_is_reported_with_the_command_that_creates_it(
    spark: Any, remote: Remote
) -> None:
    options = given(remote, remote.token("read", "write", name="nowhere"), queue="nowhere")

    for text in (reading(spark, options), writing(spark, options)):
        assert text.startswith(f"qmd at tls://localhost:{remote.port}: ")
        assert "qmd queue create" in text
        assert "QM-1201" in text


def test_a_daemon_of_another_version_is_reported(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path / "a", warm=False)
    with monkeypatch.context() as patch:
        patch.setattr(harness, "COMMAND", [sys.executable, "-c", OF_ANOTHER_VERSION])
        daemon.start()
    try:
        socket = str(daemon.folder / "qmd.sock")
        for text in (
            reading(spark, {"endpoint": socket, "queue": "orders"}),
            writing(spark, {"endpoint": socket, "destination": "orders"}),
        ):
            assert text.startswith(f"qmd at {socket}: ")
            assert "version" in text
            assert "release" in text
    finally:
        daemon.terminate()


def test_express_messages_are_refused_before_any_work_with_the_reason(
    spark: Any, remote: Remote
) -> None:
    options = given(remote, remote.token("write", name="express"), delivery="express")
    rows = spark.range(1).selectExpr("cast(raise_error('work was done') AS string) AS body")

    with pytest.raises(Exception, match="live in memory") as failure:
        rows.write.format("qmd").mode("append").options(**options).save()

    assert "work was done" not in str(failure.value)


def test_a_token_is_in_no_plan_and_in_no_log_of_events(
    spark: Any, remote: Remote, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    token = remote.token("read", "write", name="secret")
    secret = token.read_text().strip()
    options = given(remote, token)
    table = spark.read.format("qmd").options(**options).load()

    table.explain(extended=True)
    spark.range(1).selectExpr("cast(id AS string) AS body").write.format("qmd").mode(
        "append"
    ).options(**options).save()
    table.count()

    out = capfd.readouterr()
    assert "qmd" in out.out
    assert secret not in out.out + out.err
    logs = Path(spark.conf.get("spark.eventLog.dir"))
    events = "".join(each.read_text() for each in logs.rglob("*") if each.is_file())
    assert "qmd" in events
    assert secret not in events
