"""The options of the data source, and the errors for mistakes."""

import json
import threading

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.source.connection import Connection
from pipeline.source.errors import SourceError
from pipeline.source.options import Endpoint, Options


def read(**options):
    return Options({"endpoint": "/run/qmd.sock", "queue": "orders", **options}, "read")


def stream(**options):
    return Options(
        {"endpoint": "/run/qmd.sock", "queue": "orders", "readerId": "lake", **options},
        "readStream",
    )


def test_names_of_options_have_no_case():
    assert read(PARTITIONS="3").partitions == 3


def test_a_misspelt_option_is_refused_and_the_right_one_named():
    with pytest.raises(
        SourceError, match='"partition" is not an option of read; did you mean partitions'
    ):
        read(partition="3")


def test_an_option_of_another_use_is_refused():
    with pytest.raises(SourceError, match='"readerId" is not an option of read'):
        read(readerId="lake")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": "many"}, "\"partitions\" is 'many'; it is a whole number"),
        ({"partitions": "0"}, '"partitions" is 0; it is 1 to 10000'),
        ({"body": "no"}, "\"body\" is 'no'; it is true or false"),
        ({"kind": "letters"}, "\"kind\" is 'letters'; it is one of messages, events"),
        ({"columns": "id,lable"}, "has 'lable', which messages do not have; did you mean label?"),
        ({"columns": "id,id"}, "names a column twice"),
        ({"columns": "id,body", "body": "false"}, "'body', which cannot be read without bodies"),
        ({"endpoint": "http://hosta"}, "it is a path, or tls://host:port"),
        ({"endpoint": ""}, '"endpoint" is missing'),
        ({"queue": ""}, '"queue" is missing'),
    ],
)
def test_an_invalid_value_is_refused_with_its_option(options, said):
    with pytest.raises(SourceError) as refused:
        all_of(read(**options))

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def all_of(options):
    """Return all fields that a read requests."""
    return options.partitions, options.sources(), options.columns(options.kind)


def test_several_queues_of_several_queue_managers():
    found = read(endpoint="/run/a.sock, tls://hostb:1802", queue="orders,invoices").sources()

    assert [(str(one.endpoint), one.queues) for one in found] == [
        ("/run/a.sock", ("orders", "invoices")),
        ("tls://hostb:1802", ("orders", "invoices")),
    ]


def test_a_list_may_be_json_where_a_name_has_commas():
    (found,) = read(queue='["a,b", "c"]').sources()

    assert found.queues == ("a,b", "c")


def test_each_queue_manager_may_have_other_queues():
    sources = [
        {"endpoint": "/run/a.sock", "queue": "orders"},
        {"endpoint": "tls://hostb:1802", "queue": ["x", "y"], "tokenFile": "/etc/qmd/b.token"},
    ]

    found = Options({"sources": json.dumps(sources), "tokenFile": "/etc/qmd/token"}, "read")

    assert [(one.endpoint.token_file, one.queues) for one in found.sources()] == [
        ("/etc/qmd/token", ("orders",)),
        ("/etc/qmd/b.token", ("x", "y")),
    ]


def test_a_stream_needs_a_name_of_its_own():
    with pytest.raises(SourceError, match='"readerId" is missing'):
        assert stream(readerId="").reader_id


@pytest.mark.parametrize(
    ("queue", "shared"),
    [("orders", False), ("orders;journal", True), ("orders;journal,orders", False)],
)
def test_messages_of_journals_are_not_removed(queue, shared):
    assert stream(queue=queue).shared is shared


def test_without_bodies_their_columns_are_not_read():
    columns = read(body="false").columns("messages")

    assert "body_bytes" in columns
    assert not {"body", "packet", "destinations"} & set(columns)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("tls://h:1", token_file="/nowhere/token"), "token file /nowhere/token cannot"),
        (Endpoint("tls://h:1", ca_file="/nowhere/ca"), "the ca file /nowhere/ca cannot be read"),
        (Endpoint("tls://h:1", token_env="QMD_NO"), "spark.executorEnv.QMD_NO"),
    ],
)
def test_a_missing_secret_is_reported_with_the_remedy(endpoint, said):
    with pytest.raises(SourceError) as refused:
        Connection(endpoint)

    assert said in str(refused.value)
    assert "tls://h:1" in str(refused.value)


def test_a_known_queue_manager_is_waited_for_during_its_start(tmp_path):
    place = Endpoint(str(tmp_path / "qmd.sock"), reconnect_s=0.3)

    with pytest.raises(SourceError, match=r"qmd at .*qmd\.sock: there is no control socket"):
        Connection(place, patient=True)
    started = threading.Timer(0.1, lambda: (tmp_path / "there").touch())
    started.start()
    with pytest.raises(SourceError):
        Connection(place, patient=True)
    assert (tmp_path / "there").exists(), "it has not waited"
    started.join()
