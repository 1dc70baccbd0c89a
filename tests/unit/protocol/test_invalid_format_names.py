"""Queue names that are refused, [MS-MQMQ] 2.1: the field and the position of each refusal."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidName
from protocol.names.format_name import (
    ConnectorName,
    DirectName,
    DistributionListName,
    MachineName,
    MulticastName,
    MultipleName,
    PathName,
    PrivateName,
    PublicName,
    Suffix,
    Transport,
    parse_format_name,
)

GUID = "4d57dc9d-6f0d-11d0-aa0f-00a0c9039c4f"
RAW = bytes.fromhex("9ddc574d0d6fd011aa0f00a0c9039c4f")


def direct(text: str) -> DirectName:
    name = parse_format_name(text)
    assert isinstance(name, DirectName)
    return name


def refusal(text: str) -> tuple[str, int]:
    with pytest.raises(InvalidName) as caught:
        parse_format_name(text)
    return caught.value.field, caught.value.offset


# Refusing


@pytest.mark.parametrize(
    ("text", "field", "offset"),
    [
        ("", "format_name", 0),
        ("orders", "format_name", 0),
        ("QUEUE=x", "format_name", 0),
        (" DIRECT=OS:h\\q", "format_name", 0),
        ("DIRECT=", "direct.protocol", 7),
        ("DIRECT=h\\q", "direct.protocol", 7),
        ("DIRECT=UDP:h\\q", "direct.protocol", 7),
        ("DIRECT=SPX:00000012:ce3a51e90f2b\\q", "direct.protocol", 7),
        ("DIRECT=IPX:00000012:ce3a51e90f2b\\q", "direct.protocol", 7),
        ("DIRECT=OS:h", "direct.queue", 11),
        ("DIRECT=OS:\\q", "direct.host", 10),
        ("DIRECT=OS:a b\\q", "direct.host", 11),
        ("DIRECT=OS:h\u00a0\\q", "direct.host", 11),
        ("DIRECT=OS:h\u0085\\q", "direct.host", 11),
        ("DIRECT=OS:h\u202e\\q", "direct.host", 11),
        ("DIRECT=OS:h\ue000\\q", "direct.host", 11),
        ("DIRECT=OS:h\uff0f\\q", "direct.host", 11),
        ("DIRECT=OS:h\\stra\u00dfe", "direct.queue", 16),
        ("DIRECT=OS:h\\\u0130", "direct.queue", 12),
        ("DIRECT=OS:h\\\u0131", "direct.queue", 12),
        ("DIRECT=OS:h\\\u03a3", "direct.queue", 12),
        ("DIRECT=OS:h\\\u212a", "direct.queue", 12),
        ("DIRECT=OS:h\\" + 63 * "\U0001f4ef", "direct.queue", 136),
        ("DIRECT=OS:h\x7f\\q", "direct.host", 11),
        ("DIRECT=OS:::1\\q", "direct.host", 10),
        ("DIRECT=HTTP://::1/MSMQ\\q", "direct.host", 14),
        ("DIRECT=OS:[::1]\\q", "direct.host", 11),
        ("DIRECT=OS:h:\\q", "direct.port", 12),
        ("DIRECT=OS:h:0\\q", "direct.port", 12),
        ("DIRECT=OS:h:65536\\q", "direct.port", 12),
        ("DIRECT=OS:h:18x\\q", "direct.port", 12),
        ("DIRECT=OS:h:\u0661\\q", "direct.port", 12),
        ("DIRECT=TCP:\\q", "direct.host", 11),
        ("DIRECT=TCP:hostb\\q", "direct.host", 11),
        ("DIRECT=TCP:10.0.0.256\\q", "direct.host", 18),
        ("DIRECT=TCP:10.0.00.1\\q", "direct.host", 16),
        ("DIRECT=TCP:10.0.0\\q", "direct.host", 11),
        ("DIRECT=TCP:10.0.0.1.2\\q", "direct.host", 11),
        ("DIRECT=TCP:1::2::3\\q", "direct.host", 11),
        ("DIRECT=TCP:[10.0.0.1]\\q", "direct.host", 11),
        ("DIRECT=TCP:[::1\\q", "direct.host", 11),
        ("DIRECT=TCP:[::1]1802\\q", "direct.host", 11),
        ("DIRECT=TCP:fe80::1%\\q", "direct.host", 19),
        ("DIRECT=TCP:fe80::1%e/0\\q", "direct.host", 20),
        ("DIRECT=HTTP:h\\q", "direct.host", 12),
        ("DIRECT=HTTP://h\\q", "direct.virtual_directory", 17),
        ("DIRECT=HTTP://h/other\\q", "direct.virtual_directory", 15),
        ("DIRECT=HTTP://h/MSMQ", "direct.queue", 20),
        ("DIRECT=HTTP://h/MSMQs\\q", "direct.virtual_directory", 15),
        ("DIRECT=HTTP://h/MSMQq\\q", "direct.virtual_directory", 15),
        ("DIRECT=HTTP:///MSMQ\\q", "direct.host", 14),
        ("DIRECT=OS:h\\", "direct.queue", 12),
        ("DIRECT=OS:h\\private$", "direct.queue", 12),
        ("DIRECT=OS:h\\SYSTEM$", "direct.queue", 12),
        ("DIRECT=OS:h\\private$\\", "direct.queue", 21),
        ("DIRECT=OS:h\\private$\\a+b", "direct.queue", 22),
        ("DIRECT=OS:h\\ a", "direct.queue", 12),
        ("DIRECT=OS:h\\a ", "direct.queue", 13),
        ("DIRECT=OS:h\\a;b ", "direct.subqueue", 15),
        ("DIRECT=OS:h\\a\\b", "direct.queue", 13),
        ('DIRECT=OS:h\\a"', "direct.queue", 13),
        ("DIRECT=OS:h\\a\x80", "direct.queue", 13),
        ("DIRECT=OS:h\\" + "q" * 125, "direct.queue", 12 + 124),
        ("DIRECT=OS:" + "h" * 257 + "\\q", "direct.host", 10 + 256),
        ("DIRECT=OS:h\\q;", "direct.subqueue", 14),
        ("DIRECT=OS:h\\q;a;b", "direct.subqueue", 15),
        ("DIRECT=OS:h\\q;" + "s" * 33, "direct.subqueue", 14 + 32),
        ("DIRECT=OS:h\\q;retry;JOURNAL", "direct.subqueue", 19),
        ("DIRECT=OS:h\\q;DEADLETTER", "direct.suffix", 14),
        ("DIRECT=OS:h\\q;deadxact", "direct.suffix", 14),
        ("DIRECT=OS:h\\q;XACTONLY", "direct.suffix", 14),
        ("DIRECT=OS:h\\SYSTEM$;", "direct.suffix", 20),
        ("DIRECT=OS:h\\SYSTEM$;XACTONLY", "direct.suffix", 20),
        ("DIRECT=OS:h\\SYSTEM$;JOURNAL;x", "direct.suffix", 20),
        ("PUBLIC=", "public.guid", 7),
        (f"PUBLIC={{{GUID}}}", "public.guid", 7),
        (f"PUBLIC={GUID[:20]}", "public.guid", 27),
        (f"PUBLIC={GUID[:8]}_{GUID[9:]}", "public.guid", 15),
        (f"PUBLIC={GUID[:35]}g", "public.guid", 42),
        (f"PUBLIC={GUID}0", "public.suffix", 43),
        (f"PUBLIC={GUID};DEADLETTER", "public.suffix", 43),
        (f"PUBLIC={GUID};", "public.suffix", 43),
        (f"PUBLIC={GUID}:JOURNAL", "public.suffix", 43),
        (f"PRIVATE={GUID}", "private.number", 44),
        (f"PRIVATE={GUID}\\", "private.number", 45),
        (f"PRIVATE={GUID}\\123456789", "private.number", 53),
        (f"PRIVATE={GUID}\\12g", "private.number", 47),
        (f"PRIVATE={GUID}\\1;DEADXACT", "private.suffix", 46),
        (f"DL={GUID}@", "dl.domain", 40),
        (f"DL={GUID};JOURNAL", "dl.domain", 39),
        (f"DL={GUID}@a b", "dl.domain", 41),
        (f"DL={GUID}@" + "d" * 256, "dl.domain", 40 + 255),
        (f"MACHINE={GUID};XACTONLY", "machine.suffix", 44),
        (f"CONNECTOR={GUID};JOURNAL", "connector.suffix", 46),
        ("MULTICAST=224.0.0.1", "multicast.port", 19),
        ("MULTICAST=224.0.0.1:", "multicast.port", 20),
        ("MULTICAST=224.0.0.1:08001", "multicast.port", 20),
        ("MULTICAST=224.0.0.1:65536", "multicast.port", 20),
        ("MULTICAST=223.0.0.1:1", "multicast.address", 10),
        ("MULTICAST=240.0.0.1:1", "multicast.address", 10),
        ("MULTICAST=224.0.0.01:1", "multicast.address", 18),
    ],
)
def test_a_refusal_names_the_field_and_the_first_wrong_character(
    text: str, field: str, offset: int
) -> None:
    assert refusal(text) == (field, offset)


def test_a_refusal_names_the_found_and_the_allowed_text() -> None:
    with pytest.raises(InvalidName) as caught:
        parse_format_name("DIRECT=OS:h\\a+b")

    assert str(caught.value) == (
        "direct.queue at offset 13: found '+'; allowed are ASCII characters from space to DEL "
        "except \\ ; + , and the double quote, and visible characters beyond ASCII with one lower"
        " case"
    )


def test_spx_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidName, match="SPX/IPX is not supported; use TCP: or OS:"):
        parse_format_name("DIRECT=SPX:00000012:ce3a51e90f2b\\q")


def test_the_longest_names_are_read() -> None:
    text = "DIRECT=OS:" + "h" * 256 + ":65535\\private$\\" + "q" * 124 + ";" + "s" * 32

    assert str(parse_format_name(text)) == text


def test_the_characters_at_the_edges_of_the_grammar_are_allowed() -> None:
    assert direct("DIRECT=OS:!~\\!#*-:<[]\x7f").queue == "!#*-:<[]\x7f"


@pytest.mark.parametrize(
    "element",
    [
        r"DIRECT=OS:h\q;JOURNAL",
        r"DIRECT=OS:h\SYSTEM$;DEADXACT",
        r"DIRECT=OS:h\q;retry",
        f"PUBLIC={GUID};JOURNAL",
        f"MACHINE={GUID};DEADLETTER",
    ],
)
def test_a_multiple_element_name_refuses_read_only_queues_by_element(element: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_format_name(rf"DIRECT=OS:h\q,{element},DIRECT=OS:h\r")

    assert (caught.value.field, caught.value.offset) == ("element[1]", 14)
    assert element in caught.value.rule


def test_an_error_inside_an_element_counts_from_the_start_of_the_whole_name() -> None:
    assert refusal(r"DIRECT=OS:h\q,DIRECT=OS:h\a+b") == ("element[1].direct.queue", 27)
    assert refusal(r"DIRECT=OS:h\q,") == ("element[1].format_name", 14)
    assert refusal(r"DIRECT=OS:h\q,,DIRECT=OS:h\q") == ("element[1].format_name", 14)
    assert refusal(r"DIRECT=OS:h\q, DIRECT=OS:h\q") == ("element[1].format_name", 14)


def test_a_multiple_element_name_has_a_limit() -> None:
    element = r"DIRECT=OS:h\q"

    assert isinstance(parse_format_name(",".join([element] * 1000)), MultipleName)
    assert refusal(",".join([element] * 1001)) == ("format_name", 1000 * (len(element) + 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectName(Transport.OS, "h", 1801, "a\\b"),
        lambda: DirectName(Transport.OS, "h", 1801, "private$\\b"),
        lambda: DirectName(Transport.OS, "h", 1801, "b", subqueue="journal"),
        lambda: DirectName(Transport.OS, "h", 1801, "b", subqueue=""),
        lambda: DirectName(Transport.OS, "h", 1801, "b", suffix=Suffix.DEADXACT),
        lambda: DirectName(Transport.OS, "h", 1801, "b", system=True),
        lambda: DirectName(Transport.OS, "h", 1801),
        lambda: DirectName(Transport.OS, "h", 0, "b"),
        lambda: DirectName(Transport.OS, "h", 65536, "b"),
        lambda: DirectName(Transport.TCP, "h", 1801, "b"),
        lambda: DirectName(Transport.TCP, "10.0.0.5:1802", 1801, "b"),
        lambda: PublicName(RAW, Suffix.XACTONLY),
        lambda: PrivateName(RAW, 1 << 32),
        lambda: PrivateName(RAW, 1, Suffix.DEADXACT),
        lambda: MachineName(RAW, Suffix.XACTONLY),
        lambda: ConnectorName(RAW, Suffix.JOURNAL),
        lambda: DistributionListName(RAW, "a,b"),
        lambda: MulticastName("10.0.0.1", 1),
        lambda: MulticastName("224.0.0.1", 65536),
        lambda: MultipleName((PublicName(RAW),)),
        lambda: MultipleName((PublicName(RAW), MachineName(RAW))),
        lambda: PathName("h", "a", subqueue="journal"),
        lambda: PathName("a\\b", "q"),
    ],
)
def test_a_name_that_cannot_be_read_back_cannot_be_made(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidName):
        make()


def test_an_address_given_by_a_program_is_printed_in_its_shortest_form() -> None:
    name = DirectName(Transport.TCP, "0:0::0:1", 1801, "order_queue$", private=True)

    assert str(name) == r"DIRECT=TCP:::1\private$\order_queue$"


def test_the_long_s_does_not_make_a_keyword() -> None:
    assert refusal("DIRECT=O\u017f:h\\q") == ("direct.protocol", 7)
    assert refusal("DIRECT=HTTP://h/M\u017fMQ\\q")[0] == "direct.virtual_directory"
