"""The partitions of a range, and the stored state of a stream."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.source.checkpoint import finish, last_committed
from pipeline.source.errors import SourceError
from pipeline.source.offsets import ends_of, offset_of
from pipeline.source.stream import parts


@given(st.integers(0, 1000), st.integers(0, 50), st.integers(1, 9))
def test_parts_follow_each_other_and_none_is_empty(after, size, count):
    cut = parts(after, after + size, count)

    assert all(low < high for low, high in cut)
    assert [one for low, high in cut for one in range(low, high)] == list(
        range(after, after + size)
    )
    assert len(cut) == min(count, size)


def test_equal_ends_are_equal_texts_in_any_order():
    one = offset_of("lake", {"b": ("/run/b", 2), "a": ("/run/a", 1)})
    other = offset_of("lake", {"a": ("/run/a", 1), "b": ("/run/b", 2)})

    assert json.dumps(one) == json.dumps(other)
    assert ends_of(one) == {"a": ("/run/a", 1), "b": ("/run/b", 2)}


def test_an_offset_of_another_release_is_refused():
    with pytest.raises(SourceError, match="version 9"):
        ends_of({"qmd": 9, "queues": {}})


def checkpoint(folder, *, offsets, commits):
    """Write a checkpoint as Spark writes it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for number, lines in offsets.items():
        text = "\n".join(["v1", '{"batchWatermarkMs":0}', *map(json.dumps, lines)])
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_text("")
    for number in commits:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)


def test_the_newest_batch_that_is_in_the_sink_counts(tmp_path):
    offsets = {
        number: [offset_of("lake", {"q": ("/run/a", number)}), {"files": 3}]
        for number in (8, 9, 10, 11)
    }

    found = last_committed(checkpoint(tmp_path, offsets=offsets, commits=(8, 9, 10)))

    assert found == (10, [offset_of("lake", {"q": ("/run/a", 10)})])


def test_a_query_without_a_committed_batch_has_nothing_to_close(tmp_path):
    assert finish(checkpoint(tmp_path, offsets={}, commits=())) == []


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(SourceError, match="is not a checkpoint of a streaming query"):
        finish(str(tmp_path))
