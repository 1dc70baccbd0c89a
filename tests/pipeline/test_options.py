"""The options of the data source, and the errors for mistakes."""

import json
import threading

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.source import DefaultSource
from pipeline.source.connection import Connection
from pipeline.source.errors import SourceError
from pipeline.source.option_names import KAFKA
from pipeline.source.options import Endpoint, Options


def read(**options):
    return Options({"endpoint": "/run/qmd.sock", "queue": "orders", **options}, "read").check()


def stream(**options):
    return Options(
        {"endpoint": "/run/qmd.sock", "queue": "orders", "readerId": "lake", **options},
        "readStream",
    ).check()


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
        ({"where": "body = 'x'", "body": "false"}, "'body', which cannot be read without bodies"),
        ({"endpoint": "http://hosta"}, "it is a path, or tls://host:port"),
        ({"endpoint": ""}, '"endpoint" is missing'),
        ({"queue": "orders*;journal"}, "has the pattern 'orders*;journal', and patterns stand"),
        ({"kind": "events", "bodyFormat": "text"}, '"bodyFormat" needs the bodies of messages'),
        ({"queue": ""}, '"queue" is missing'),
        ({"queue": "[null]"}, "\"queue\" is '[null]'; the names in the list are texts"),
        ({"partitions": "1_000"}, "\"partitions\" is '1_000'; it is a whole number"),
        ({"partitions": "\u0663"}, "it is a whole number"),
        ({"tokenEnv": ""}, '"tokenEnv" is empty; give it a value, or leave it out'),
        ({"caFile": " "}, '"caFile" is empty; give it a value, or leave it out'),
    ],
)
def test_an_invalid_value_is_refused_with_its_option(options, said):
    with pytest.raises(SourceError) as refused:
        read(**options)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("option", ["columns", "sources", "startingOffsets", "kind", "partitions"])
@pytest.mark.parametrize("value", ["[" * 5000, "\0" * 5000])
def test_an_absurdly_long_value_is_refused_with_a_short_sentence(option, value):
    given = {"endpoint": "/run/qmd.sock", "queue": "orders", option: value}
    if option == "sources":
        del given["endpoint"], given["queue"]
    with pytest.raises(SourceError) as refused:
        DefaultSource(given).reader(None)

    assert f'option "{option}"' in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"readerId": ""}, '"readerId" is missing'),
        ({"readerId": " "}, '"readerId" is missing'),
        ({"readerId": "x" * 201}, '"readerId" has 201 characters; 200 are allowed'),
        ({"onGap": "ignore"}, "\"onGap\" is 'ignore'; it is one of fail, warn"),
        ({"failOnDataLoss": "no"}, "\"failOnDataLoss\" is 'no'; it is true or false"),
        ({"failOnDataLoss": "true", "onGap": "fail"}, 'is the same as "onGap"'),
        ({"startingFrom": "middle"}, "is 'middle'; it is one of oldest, newest"),
        ({"startingOffsets": "middle"}, "is 'middle'; it is earliest, latest, or as"),
        ({"startingOffsets": '{"x": 1}'}, "names 'x', and the option \"queue\" does not"),
        ({"startingOffsets": '{"orders": -3}'}, "has -3 for 'orders'; it is a whole number"),
        ({"startingTimestamp": "soon"}, "is 'soon'; it is a time as 2026-01-31T08:00:00Z"),
        ({"startingTimestamp": "2026-01-31", "startingOffsets": "latest"}, "exclude each other"),
        ({"startingTimestamp": '{"other": 1}'}, "names 'other', and the option"),
        ({"startingTimestamp": '{"orders": 1.5}'}, "it is a time, or as"),
        ({"startingTimestamp": '{"orders": "soon"}'}, "is 'soon'; it is a time as"),
        ({"startingTimestamp": '{"orders": 1700000000}'}, "or milliseconds since 1970"),
        ({"endingTimestamp": '{"orders": 1700000000000000}'}, "or milliseconds since 1970"),
        ({"endingTimestamp": '{"orders": -1}'}, "or milliseconds since 1970"),
        ({"endingTimestamp": "{}"}, "it is a time, or as"),
        ({"endingTimestamp": '{"orders'}, "it is a time, or as"),
        ({"startingTimestamp": "2026-01-31", "startingFrom": "newest"}, "is the same as"),
        ({"startingOffsetsByTimestampStrategy": "error"}, 'needs the option "startingTimestamp"'),
        (
            {"startingTimestamp": "2026-01-31", "startingOffsetsByTimestampStrategy": "oldest"},
            "is 'oldest'; it is one of latest, error",
        ),
        ({"startingTimestamp": "1700000000"}, "or milliseconds since 1970"),  # seconds
        ({"startingTimestamp": "1700000000000000"}, "or milliseconds since 1970"),  # microseconds
        (
            {"startingOffsets": '{"orders": 5}', "endingOffsets": '{"orders": 3}'},
            '"endingOffsets" ends at 3, before the start at 5',
        ),
        (
            {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"},
            '"endingTimestamp" is before "startingTimestamp"',
        ),
        ({"endpoint": "/run/a.sock,/run/a.sock"}, '"endpoint" names /run/a.sock twice'),
        ({"endingOffsets": "earliest"}, "a read that ends there reads nothing"),
        ({"maxRowsPerTrigger": "0"}, '"maxRowsPerTrigger" is 0; it is 1 to'),
        ({"maxMessagesPerTrigger": "1e3"}, "\"maxMessagesPerTrigger\" is '1e3'; it is a whole"),
        ({"maxMessagesPerTrigger": "1", "maxRowsPerTrigger": "2"}, "is the same as"),
        ({"maxBytesPerTrigger": "-1"}, '"maxBytesPerTrigger" is -1; it is 0 to'),
        ({"minRowsPerTrigger": "30000"}, "is 30000, which is more than maxRowsPerTrigger (20000)"),
        ({"maxTriggerDelay": "15m"}, 'needs the option "minRowsPerTrigger"'),
        ({"minRowsPerTrigger": "2", "maxTriggerDelay": "soon"}, "is 'soon'; it is a duration"),
        ({"discoverSeconds": "0"}, '"discoverSeconds" is 0; it is 1 to 86400'),
        ({"shared": "yes"}, "\"shared\" is 'yes'; it is true or false"),
        ({"kind": "events"}, '"kind" is messages for a stream'),
        ({"reconnectSeconds": "1m"}, "\"reconnectSeconds\" is '1m'; it is a whole number"),
        ({"where": "priority = 3"}, '"where" is not an option of readStream; it is one of read'),
        ({"subscribe": "orders"}, "is of Kafka's source; its counterpart here is queue"),
        ({"maxOffsetsPerTrigger": "5"}, 'option "maxOffsetsPerTrigger" is of Kafka'),
        ({"maxOffsetsPerTrigger": "5"}, "its counterpart here is maxRowsPerTrigger"),
        ({"kafka.security.protocol": "SSL"}, "counterpart here is the endpoint, tls://host:port"),
        ({"kafka.ssl.truststore.location": "/ca.jks"}, "its counterpart here is caFile"),
        ({"kafka.linger.ms": "5"}, "is for Kafka's own client, and has no counterpart here"),
        ({"certificateFile": "/etc/c.crt"}, '"keyFile" is missing'),
        ({"tokenFile": "/t", "tokenEnv": "T"}, 'and "tokenFile" exclude each other'),
        ({"bodyFormat": "xml"}, "it is one of binary, text, json, avro, dotnet"),
        ({"bodyFormat": "json"}, '"bodySchema" is missing: bodyFormat=json needs it'),
        ({"bodyFormat": "json", "bodySchema": ""}, '"bodySchema" is missing'),
        (
            {"bodyFormat": "json", "bodySchema": "name string, total itn"},
            "\"bodySchema\" is 'name string, total itn': it has 'itn' as the type of total;",
        ),
        ({"bodyFormat": "avro"}, '"avroSchema" is missing: bodyFormat=avro needs it'),
        ({"bodySchema": "a int"}, '"bodySchema" needs the option "bodyFormat" to be json'),
        ({"onBadBody": "fail"}, '"onBadBody" needs the option "bodyFormat"'),
        ({"bodyFormat": "text", "body": "false"}, '"bodyFormat" needs the bodies of messages'),
        ({"columns": "content"}, 'exists only with the option "bodyFormat"'),
        ({"endpoint": "tls://hosta"}, "it is a path, or tls://host:port"),
        ({"queue": '["a"'}, "which is no list of JSON"),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_with_one_sentence_before_it_begins(options, said):
    """Spark loses exceptions of `streamReader`, so the reader that it gets raises them."""
    given = {"endpoint": "/run/qmd.sock", "queue": "orders", "readerId": "lake", **options}

    reader = DefaultSource(given).streamReader(None)

    for call in (reader.initialOffset, reader.getDefaultReadLimit, reader.reportLatestOffset):
        with pytest.raises(SourceError) as refused:
            call()
        assert said in str(refused.value)
        assert str(refused.value).startswith('qmd: option "')
        assert "\n" not in str(refused.value)
    reader.stop()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("priority", "cannot be read at 'its end'"),
        ("priority = 3 OR label = 'x'", "cannot be read at 'OR'"),
        ("prioritee = 3", "has 'prioritee', which messages do not have; did you mean priority?"),
        ("priority = 'high'", "compares priority, which is a whole number, with 'high'"),
        ("priority = 2.5", "compares priority with 2.5; it is a whole number"),
        ("priority LIKE '3%'", "has LIKE for priority, which is no text"),
        ("arrived_at > 'soon'", "is 'soon'; it is a time as"),
        ("sequence = 3", "has 'sequence'; there are sequence.id"),
        ("acknowledge = 'x'", "cannot compare acknowledge; filter it in Spark"),
        ("label = 'x", "cannot be read at"),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(where, said):
    with pytest.raises(SourceError) as refused:
        read(where=where)

    assert said in str(refused.value)


def test_every_option_of_kafkas_source_has_a_counterpart_or_a_reason():
    """The names are those of Spark's manual for its Kafka source."""
    own = {name.lower() for name in ("startingOffsets", "endingOffsets", "failOnDataLoss")}
    own |= {"startingtimestamp", "endingtimestamp", "maxtriggerdelay"}
    own.add("startingoffsetsbytimestampstrategy")
    kafka = {
        *("assign", "subscribe", "subscribepattern", "kafka.bootstrap.servers"),
        *("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets", "endingtimestamp"),
        *("endingoffsetsbytimestamp", "endingoffsets", "failondataloss"),
        *("kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"),
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions"),
        *("maxrecordsperpartition", "groupidprefix", "kafka.group.id", "includeheaders"),
        "startingoffsetsbytimestampstrategy",
    }

    assert kafka == own | ({name.lower() for name in KAFKA} - {"topic"})


def test_a_time_between_two_milliseconds_begins_and_ends_at_the_later_one():
    """Messages arrive at whole milliseconds: one at the earlier of them came before that time."""
    for option in ("startingTimestamp", "endingTimestamp"):
        found = read(**{option: "2026-01-31T08:00:00.0071Z"})
        bound = found.starting if option == "startingTimestamp" else found.ending
        assert bound.at_ms == 1769846400008


def test_several_queues_of_several_queue_managers():
    found = read(endpoint="/run/a.sock, tls://hostb:1802", queue="orders,invoices").sources()

    assert [(str(one.endpoint), one.queues) for one in found] == [
        ("/run/a.sock", ("orders", "invoices")),
        ("tls://hostb:1802", ("orders", "invoices")),
    ]


def test_a_list_may_be_json_where_a_name_has_commas():
    (found,) = read(queue='["a,b", "c"]').sources()

    assert found.queues == ("a,b", "c")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"queue": "orders", "tokenfile": "/t"},
            "beside endpoint and queue each may have tokenFile",
        ),
        ({"queue": None}, "is not as"),
        ({"queue": "orders", "caFile": 5}, "is not as"),
        ({"queue": []}, "names no queue"),
    ],
)
def test_an_element_of_sources_is_checked_like_an_option(source, said):
    given = json.dumps([{"endpoint": "/run/a.sock", **source}])

    with pytest.raises(SourceError, match=said):
        Options({"sources": given}, "read").check()


def test_sources_name_each_queue_manager_once():
    given = json.dumps([{"endpoint": "/run/a.sock", "queue": name} for name in ("x", "y")])

    with pytest.raises(SourceError, match="twice; name all of its queues once"):
        Options({"sources": given}, "read").check()


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


@pytest.mark.parametrize(
    ("queue", "shared"),
    [
        ("orders", False),
        ("orders;journal", True),
        ("orders;journal,orders", False),
        ("system$;JOURNAL", True),
        (r"hosta\private$\orders\Journal$", True),
        (r"DIRECT=OS:hosta\private$\orders;journal", True),
        (r"private$\salesjournal", False),
        (r"private$\journal", False),
        (r"DIRECT=OS:hosta\private$\journal", False),
        ("orders;myjournal", False),
        (r"private$\*journal", False),
    ],
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


@pytest.mark.parametrize("option", ["jobId", "destination", "delivery", "tokenFile"])
def test_an_empty_value_of_a_write_is_refused(option):
    """An empty `jobId`, of a variable that is not set, would let a repeated job send again."""
    given = {"endpoint": "/run/qmd.sock", option: ""}
    with pytest.raises(SourceError, match=f'"{option}" is empty; give it a value, or leave it out'):
        Options(given, "write").check()


def test_the_topic_is_of_the_sink_of_kafka():
    with pytest.raises(SourceError, match='"topic" is of Kafka\'s sink; its counterpart here is'):
        Options({"endpoint": "/run/qmd.sock", "topic": "orders"}, "write").check()
