"""The data source over TLS: only the place that uses the token reads its file or variable."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.source.batch import LiveReader
from pipeline.source.checkpoint import finish
from pipeline.source.errors import SourceError
from pipeline.source.options import Endpoint, Options
from pipeline.source.stream import StreamReader
from qmd.client import blocking, new_message
from tests.pipeline.test_finish import written
from tests.process.remote_daemon import Remote, make_short_client

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl is needed to make certificates"
    ),
]


PAIR = (("certificate", "crt"), ("key", "key"))


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    remote = Remote(tmp_path_factory.mktemp("remote"))
    with blocking.connect(remote.folder / "qmd" / "qmd.sock") as qm:
        qm.create_queue("orders")
        qm.send_many([new_message("orders", str(number)) for number in range(20)])
    yield remote
    remote.daemon.terminate()


def given(remote: Remote, **options: str) -> dict[str, str]:
    return {
        "endpoint": f"tls://localhost:{remote.port}",
        "caFile": str(remote.ca_file),
        "queue": "orders",
        "columns": "body",
        **options,
    }


def bodies(reader: LiveReader | StreamReader, partitions: list[object]) -> list[int]:
    """Return the bodies that executors read; they get the reader and its partitions as pickles."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        int(body)
        for partition in partitions
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
        for body in batch.column("body").to_pylist()
    ]


def test_a_remote_queue_is_read_with_a_token_from_a_file_or_a_variable(remote, monkeypatch):
    token = remote.token("read", name="table")
    monkeypatch.setenv("SALES_TOKEN", token.read_text().strip())

    for secret in ({"tokenFile": str(token)}, {"tokenEnv": "SALES_TOKEN"}):
        reader = LiveReader(Options(given(remote, partitions="3", **secret), "read"))
        partitions = reader.partitions()
        assert bodies(reader, partitions) == list(range(20))
        assert token.read_text().strip().encode() not in pickle.dumps((reader, partitions))


def test_a_client_certificate_is_shown_where_one_is_demanded(tmp_path):
    remote = Remote(tmp_path)
    remote.daemon.terminate()
    remote.daemon.configure({"remote": {"client_ca": "ca.crt"}})
    make_short_client(tmp_path / "qmd", "client", 3600)
    remote.daemon.start()
    try:
        with blocking.connect(tmp_path / "qmd" / "qmd.sock") as qm:
            qm.create_queue("orders")
            qm.send("orders", "7")
        options = given(remote, tokenFile=str(remote.token("read")), reconnectSeconds="0")
        pair = {f"{name}File": str(tmp_path / "qmd" / f"client.{end}") for name, end in PAIR}

        reader = LiveReader(Options({**options, **pair}, "read"))

        assert bodies(reader, reader.partitions()) == [7]
        with pytest.raises(SourceError, match=rf"qmd at tls://localhost:{remote.port}: "):
            LiveReader(Options(options, "read")).partitions()
    finally:
        remote.daemon.terminate()


def test_an_insufficient_token_is_reported_with_its_place(remote):
    token = remote.token("write", name="other")

    with pytest.raises(SourceError, match=rf"qmd at tls://localhost:{remote.port}: .*QM-\d+"):
        LiveReader(Options(given(remote, tokenFile=str(token)), "read")).partitions()


def test_a_remote_stream_reserves_repeats_reads_and_consumes(remote):
    token = remote.token("read", "write", "admin", name="stream")
    options = given(remote, tokenFile=str(token), readerId="lake", maxMessagesPerTrigger="7")
    first = StreamReader(Options(options, "readStream"))
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    assert bodies(first, first.partitions(start, end)) == list(range(7))

    # The driver died without recording that; another one starts at the same position.
    again = StreamReader(Options(options, "readStream"))
    assert again.latestOffset(start, again.getDefaultReadLimit()) == end
    assert bodies(again, again.partitions(start, end)) == list(range(7))
    with pytest.raises(SourceError, match="lake"):
        first.latestOffset(end, ReadAllAvailable())
    again.commit(end)
    rest = again.latestOffset(end, ReadAllAvailable())
    assert bodies(again, again.partitions(end, rest)) == list(range(7, 20))
    assert again.latestOffset(rest, ReadAllAvailable()) == rest
    for reader in (first, again):
        reader.stop()


def test_a_checkpoint_names_the_files_that_its_endpoint_needs(remote, tmp_path):
    token = remote.token("read", "write", "admin", name="finish")
    with blocking.connect(remote.folder / "qmd" / "qmd.sock") as qm:
        qm.create_queue("closed")
        qm.send_many([new_message("closed", str(number)) for number in range(5)])
    options = given(remote, queue="closed", tokenFile=str(token), readerId="closing")
    reader = StreamReader(Options(options, "readStream"))
    start = reader.initialOffset()
    offsets = [start, reader.latestOffset(start, reader.getDefaultReadLimit())]
    reader.stop()
    checkpoint = written(tmp_path, offsets=offsets, commits=[0, 1])
    assert token.read_text().strip() not in json.dumps(offsets)

    (done,) = finish(checkpoint)

    assert done.messages == 5
    with pytest.raises(SourceError, match="token file /nowhere"):
        finish(checkpoint, Endpoint("", token_file="/nowhere"))
