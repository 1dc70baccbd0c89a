"""Bodies as text: each format, and bodies that lie about theirs."""

import os

import pytest

from qmd.bodies.content import write_content
from qmd.console import bodies


@pytest.mark.parametrize(
    ("body", "format", "text"),
    [
        (b"ten screws", "text", "ten screws"),
        (b'{"a":[1,2]}', "json", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        (b"<a><b>x</b><c/></a>", "xml", "<a>\n  <b>x</b>\n  <c/>\n</a>"),
        ("zehn Schrauben".encode("utf-16-le"), "utf-16", "zehn Schrauben"),
        (bytes(range(200, 256)), "hex", None),
        (b"", "text", ""),
    ],
)
def test_a_body_is_shown_in_its_format(body, format, text):
    shown = bodies.show(body, 0)

    assert shown.format == format
    assert not shown.problem
    assert text is None or shown.text == text


def test_an_object_of_net_is_shown():
    body, body_type = write_content([1, 2], "binary")

    shown = bodies.show(body, body_type)

    assert shown.format == "binary"
    assert "1" in shown.text


@pytest.mark.parametrize("format", sorted(bodies.FORMATS))
@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"\xff\xfe\xff", b"<a", b"{", b"[" * 100_000, b"\0" * 99, os.urandom(4097),
     b'<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;</a>'],
)  # fmt: skip
def test_a_body_that_lacks_the_format_is_shown_all_the_same(body, format):
    shown = bodies.show(body, 0, format)

    assert shown.format in bodies.FORMATS
    if shown.format != format:
        assert bodies.FORMATS[format].title in shown.problem


def test_a_long_body_is_cut_until_all_of_it_is_wanted():
    body = b"x" * 500_000

    assert bodies.show(body, 0).is_cut
    assert len(bodies.show(body, 0).text) == bodies.BYTES_MAX
    assert bodies.show(body, 0, whole=True).text == body.decode()
    assert bodies.show(8 * body, 0, whole=True).is_cut


@pytest.mark.parametrize("format", ["xml", "json", "binary", "activex"])
def test_a_body_that_takes_long_to_be_laid_out_is_shown_as_text(format):
    body = {
        "xml": b"<a>" + b"<b/>" * 300_000 + b"</a>",
        "json": b"[" + b"1," * 600_000 + b"1]",
        "binary": write_content(["x" * 100] * 12_000, "binary")[0],
        "activex": b"x" * 1_200_000,
    }[format]
    assert len(body) > bodies.STRUCTURED_BYTES_MAX

    shown = bodies.show(body, 0, format)

    assert "too long to be laid out" in shown.problem
    assert shown.format in ("text", "hex")


def test_a_format_can_be_added(monkeypatch):
    monkeypatch.setattr(bodies, "FORMATS", dict(bodies.FORMATS))
    bodies.register("backwards", "Backwards", lambda body, body_type: body.decode()[::-1])

    assert bodies.show(b"abc", 0, "backwards").text == "cba"
