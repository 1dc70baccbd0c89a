"""Queue names, [MS-MQMQ] 2.1: reading, printing, and the position of each refusal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import InvalidName
from protocol.names.format_name import (
    ConnectorName,
    DirectName,
    DistributionListName,
    LocalPath,
    MachineName,
    MulticastName,
    MultipleName,
    PathName,
    PrivateName,
    PublicName,
    Suffix,
    Transport,
    parse_destination,
    parse_format_name,
    parse_path_name,
    parse_wire_name,
    queue_key,
)
from protocol.names.path_name import is_plain

GUID = "4d57dc9d-6f0d-11d0-aa0f-00a0c9039c4f"
RAW = bytes.fromhex("9ddc574d0d6fd011aa0f00a0c9039c4f")


def direct(text: str) -> DirectName:
    name = parse_format_name(text)
    assert isinstance(name, DirectName)
    return name


def destination(text: str) -> str:
    return str(parse_destination(text, local_host="hosta"))


# Reading


def test_a_direct_name_is_split_into_its_parts() -> None:
    name = direct(r"DIRECT=TCP:10.0.0.5\private$\orders")

    assert name == DirectName(Transport.TCP, "10.0.0.5", 1801, "orders", private=True)


def test_a_private_and_a_public_queue_of_one_name_are_two_queues() -> None:
    assert direct(r"DIRECT=OS:hostb\orders").private is False
    assert direct(r"DIRECT=OS:hostb\orders").key != direct(r"DIRECT=OS:hostb\private$\orders").key


def test_every_kind_of_format_name_is_read() -> None:
    names = {
        f"PUBLIC={GUID}": PublicName(RAW),
        f"PUBLIC={GUID};JOURNAL": PublicName(RAW, Suffix.JOURNAL),
        f"PRIVATE={GUID}\\0000000f": PrivateName(RAW, 15),
        f"PRIVATE={GUID}\\ffffffff;JOURNAL": PrivateName(RAW, 0xFFFFFFFF, Suffix.JOURNAL),
        f"DL={GUID}": DistributionListName(RAW),
        f"DL={GUID}@example.com": DistributionListName(RAW, "example.com"),
        f"MACHINE={GUID}": MachineName(RAW),
        f"MACHINE={GUID};JOURNAL": MachineName(RAW, Suffix.JOURNAL),
        f"MACHINE={GUID};DEADLETTER": MachineName(RAW, Suffix.DEADLETTER),
        f"MACHINE={GUID};DEADXACT": MachineName(RAW, Suffix.DEADXACT),
        f"CONNECTOR={GUID}": ConnectorName(RAW),
        f"CONNECTOR={GUID};XACTONLY": ConnectorName(RAW, Suffix.XACTONLY),
        "MULTICAST=224.0.0.1:8001": MulticastName("224.0.0.1", 8001),
        "MULTICAST=239.255.255.255:0": MulticastName("239.255.255.255", 0),
    }

    for text, name in names.items():
        assert parse_format_name(text) == name
        assert str(name) == text


def test_a_multiple_element_name_keeps_its_elements_in_order() -> None:
    text = rf"DIRECT=OS:hostb\orders,PUBLIC={GUID},DL={GUID},PRIVATE={GUID}\00000004"

    name = parse_format_name(text + ",MULTICAST=224.0.0.1:8001,CONNECTOR=" + GUID)

    assert isinstance(name, MultipleName)
    assert [type(element).__name__ for element in name.elements] == [
        "DirectName",
        "PublicName",
        "DistributionListName",
        "PrivateName",
        "MulticastName",
        "ConnectorName",
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r"DIRECT=OS:h\q;JOURNAL", LocalPath("q", suffix=Suffix.JOURNAL)),
        (r"DIRECT=OS:h\private$\q;journal", LocalPath("q", True, suffix=Suffix.JOURNAL)),
        (r"DIRECT=OS:h\private$\q;retry", LocalPath("q", True, "retry")),
        (r"DIRECT=OS:h\q;poison", LocalPath("q", subqueue="poison")),
        (r"DIRECT=OS:h\SYSTEM$;JOURNAL", LocalPath(system=True, suffix=Suffix.JOURNAL)),
        (r"DIRECT=OS:h\system$;deadletter", LocalPath(system=True, suffix=Suffix.DEADLETTER)),
        (r"DIRECT=OS:h\System$;DeadXact", LocalPath(system=True, suffix=Suffix.DEADXACT)),
        (r"DIRECT=OS:h\private$x", LocalPath("private$x")),
        (r"DIRECT=OS:h\private$\private$", LocalPath("private$", True)),
    ],
)
def test_suffixes_subqueues_and_system_queues_are_distinguished(text: str, path: LocalPath) -> None:
    assert direct(text).local_path == path


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (r"DIRECT=TCP:10.0.0.5:1802\q", "10.0.0.5", 1802),
        (r"DIRECT=TCP:::1\q", "::1", 1801),
        (r"DIRECT=TCP:[::1]\q", "::1", 1801),
        (r"DIRECT=TCP:[2001:DB8:0:0::5]:65535\q", "2001:db8::5", 65535),
        (r"DIRECT=TCP:fe80::1%eth0\q", "fe80::1%eth0", 1801),
        (r"DIRECT=OS:hostb.example.com:1802\q", "hostb.example.com", 1802),
        (r"DIRECT=HTTP://hostb/MSMQ\q", "hostb", 80),
        (r"DIRECT=HTTP://hostb:/MSMQ\q", "hostb", 80),
        (r"DIRECT=HTTPS://hostb/MSMQ\q", "hostb", 443),
        (r"DIRECT=HTTPS://hostb:08443/MSMQ\q", "hostb", 8443),
        (r"DIRECT=HTTP://[::1]:8080/MSMQ\q", "::1", 8080),
    ],
)
def test_addresses_have_hosts_and_ports(text: str, host: str, port: int) -> None:
    name = direct(text)

    assert (name.host, name.port) == (host, port)


def test_an_url_may_use_slashes_before_the_queue_name() -> None:
    name = direct("DIRECT=HTTP://hostb:8080/msmq/private$/orders/new")

    assert (name.private, name.queue) == (True, "orders/new")
    assert str(name) == r"DIRECT=HTTP://hostb:8080/MSMQ\private$\orders/new"


# Printing and comparing


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (r"direct=tcp:10.0.0.5:1801\PRIVATE$\Orders", r"DIRECT=TCP:10.0.0.5\private$\Orders"),
        (r"Direct=Tcp:[0:0::1]:01802\q;Journal", r"DIRECT=TCP:[::1]:1802\q;JOURNAL"),
        (r"direct=tcp:[::1]:1801\q", r"DIRECT=TCP:::1\q"),
        (r"direct=os:HostB\system$;deadxact", r"DIRECT=OS:HostB\SYSTEM$;DEADXACT"),
        (r"direct=https://HostB:443/msmq/private$/q", r"DIRECT=HTTPS://HostB/MSMQ\private$\q"),
        (r"direct=http://[::1]:80/msmq/q", r"DIRECT=HTTP://[::1]/MSMQ\q"),
        (f"public={GUID.upper()};journal", f"PUBLIC={GUID};JOURNAL"),
        (f"private={GUID}\\F", f"PRIVATE={GUID}\\0000000f"),
        (f"connector={GUID};xactonly", f"CONNECTOR={GUID};XACTONLY"),
    ],
)
def test_keywords_and_addresses_are_printed_in_one_way(text: str, canonical: str) -> None:
    assert str(parse_format_name(text)) == canonical


def test_names_compare_without_regard_to_case() -> None:
    first = parse_format_name(r"DIRECT=OS:HOSTB\private$\Orders;Retry")
    second = parse_format_name(r"direct=os:hostb\PRIVATE$\orders;retry")

    assert first.key == second.key


def test_the_port_is_part_of_a_destination() -> None:
    assert direct(r"DIRECT=TCP:10.0.0.5\q").key == direct(r"DIRECT=TCP:10.0.0.5:1801\q").key
    assert direct(r"DIRECT=TCP:10.0.0.5\q").key != direct(r"DIRECT=TCP:10.0.0.5:1802\q").key


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (r"DIRECT=OS:h\private$\Orders", r"private$\orders"),
        (r"DIRECT=TCP:10.0.0.5:1802\Orders", "orders"),
        (r"DIRECT=OS:h\SYSTEM$;DEADXACT", "system$;deadxact"),
        (r"DIRECT=OS:h\private$\orders;JOURNAL", r"private$\orders;journal"),
        (r"DIRECT=HTTP://h/MSMQ/private$/orders;Retry", r"private$\orders;retry"),
        (f"PUBLIC={GUID}", None),
    ],
)
def test_the_queue_key_is_the_local_path_in_lower_case(text: str, key: str | None) -> None:
    assert queue_key(parse_format_name(text)) == key


@pytest.mark.parametrize(
    ("text", "read_only"),
    [
        (r"DIRECT=OS:h\q", False),
        (r"DIRECT=OS:h\q;JOURNAL", True),
        (r"DIRECT=OS:h\q;retry", True),
        (r"DIRECT=OS:h\SYSTEM$;DEADLETTER", True),
        (f"PUBLIC={GUID}", False),
        (f"PUBLIC={GUID};JOURNAL", True),
        (f"PRIVATE={GUID}\\1", False),
        (f"PRIVATE={GUID}\\1;JOURNAL", True),
        (f"MACHINE={GUID}", True),
        (f"CONNECTOR={GUID};XACTONLY", False),
        (f"DL={GUID}", False),
        ("MULTICAST=224.0.0.1:1", False),
    ],
)
def test_journals_dead_letter_queues_and_subqueues_are_read_only(
    text: str, read_only: bool
) -> None:
    assert parse_format_name(text).read_only is read_only


# On the wire


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        (r"DIRECT=TCP:10.0.0.5\private$\q", r"TCP:10.0.0.5\private$\q"),
        (r"DIRECT=TCP:10.0.0.5:1802\private$\q", r"TCP:10.0.0.5\private$\q"),
        (r"DIRECT=TCP:[::1]:1802\q", r"TCP:::1\q"),
        (r"DIRECT=OS:hostb:1802\q;JOURNAL", r"OS:hostb\q;JOURNAL"),
        (r"DIRECT=HTTP://hostb:8080/MSMQ\q", r"HTTP://hostb:8080/MSMQ\q"),
        (r"DIRECT=HTTP://hostb:1801/MSMQ\q", r"HTTP://hostb:1801/MSMQ\q"),
        (r"DIRECT=HTTP://hostb:80/MSMQ\q", r"HTTP://hostb/MSMQ\q"),
    ],
)
def test_a_packet_carries_neither_direct_nor_our_port(text: str, wire: str) -> None:
    name = direct(text)

    assert name.wire_text() == wire
    assert name.wire_bytes() == wire.encode("utf-16-le") + b"\0\0"
    assert parse_wire_name(name.wire_bytes()).wire_text() == wire


def test_a_computer_and_a_queue_may_have_names_beyond_ascii() -> None:
    name = parse_format_name("DIRECT=os:büro-ñ\\PRIVATE$\\Aufträge;注文")

    assert str(name) == "DIRECT=OS:büro-ñ\\private$\\Aufträge;注文"
    assert name.key == parse_format_name("DIRECT=OS:BÜRO-Ñ\\private$\\AUFTRÄGE;注文").key
    assert parse_path_name("büro\\Aufträge") == PathName("büro", "Aufträge")
    assert isinstance(name, DirectName)
    assert parse_wire_name(name.wire_bytes()) == name


def test_each_character_beyond_ascii_compares_alone_and_in_one_way() -> None:
    """Names are compared with `lower` and with `casefold`, as a whole and by their parts."""
    plain = [character for character in map(chr, range(0x80, 0x110000)) if is_plain(character)]

    assert len(plain) > 100_000
    for character in plain:
        lower = character.lower()
        assert lower == character.casefold() == lower.lower() == lower.casefold()
        assert is_plain(lower)
        assert f"Å{character}".lower() == f"å{lower}"
        assert f"{character}Å".lower() == f"{lower}å"


def test_the_wire_name_of_the_specifications_example_is_read() -> None:
    name = parse_wire_name("OS:a04bm02\\q\0".encode("utf-16-le"))

    assert name == DirectName(Transport.OS, "a04bm02", 1801, "q")


@pytest.mark.parametrize(
    ("raw", "field", "offset"),
    [
        (b"", "direct", 0),
        (b"\0", "direct", 0),
        ("OS:h\\q".encode("utf-16-le"), "direct", 6),
        ("OS:h\\q\0".encode("utf-16-le")[:-1], "direct", 6),
        (b"\0\0", "direct.protocol", 0),
        ("OS:h\\q\0\0".encode("utf-16-le"), "direct.queue", 6),
        ("DIRECT=OS:h\\q\0".encode("utf-16-le"), "direct.protocol", 0),
        (b"O\0S\0:\0\0\xd8\\\0q\0\0\0", "direct", 3),
        ("OS:h\\\uff3c\0".encode("utf-16-le"), "direct.queue", 5),
    ],
)
def test_an_invalid_wire_name_is_refused(raw: bytes, field: str, offset: int) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_wire_name(raw)

    assert (caught.value.field, caught.value.offset) == (field, offset)


# Path names


@pytest.mark.parametrize(
    ("text", "name", "canonical"),
    [
        (r"hostb\orders", PathName("hostb", "orders"), r"hostb\orders"),
        (r"hostb\PRIVATE$\q", PathName("hostb", "q", private=True), r"hostb\private$\q"),
        (r".\private$\q;s", PathName(".", "q", private=True, subqueue="s"), r".\private$\q;s"),
        (
            r"h\system$;journal",
            PathName("h", system=True, suffix=Suffix.JOURNAL),
            r"h\SYSTEM$;JOURNAL",
        ),
        (r"h\system$;other", PathName("h", "other", system=True), r"h\SYSTEM$;other"),
    ],
)
def test_path_names_are_read_and_printed(text: str, name: PathName, canonical: str) -> None:
    assert parse_path_name(text) == name
    assert str(name) == canonical
    assert parse_path_name(canonical).key == canonical.lower()


@pytest.mark.parametrize(
    ("text", "field", "offset"),
    [
        ("", "path.computer", 0),
        ("hostb", "path", 5),
        (r"\q", "path.computer", 0),
        ("h:1\\q", "path.computer", 1),
        ("h\\", "path.queue", 2),
        ("h\\private$\\q\\r", "path.queue", 12),
        ("h\\q;" + "s" * 33, "path.subqueue", 36),
        ("h\\system$;a;b", "path.queue", 11),
        ("h" * 257 + "\\q", "path.computer", 256),
    ],
)
def test_invalid_path_names_are_refused(text: str, field: str, offset: int) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_path_name(text)

    assert (caught.value.field, caught.value.offset) == (field, offset)


# Names as people type them


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("orders", r"DIRECT=OS:hosta\private$\orders"),
        ("orders;retry", r"DIRECT=OS:hosta\private$\orders;retry"),
        ("orders;journal", r"DIRECT=OS:hosta\private$\orders;JOURNAL"),
        (r"private$\orders", r"DIRECT=OS:hosta\private$\orders"),
        (r".\private$\orders", r"DIRECT=OS:hosta\private$\orders"),
        (r".\orders", r"DIRECT=OS:hosta\orders"),
        (r".:1802\orders", r"DIRECT=OS:hosta:1802\orders"),
        (r"DIRECT=OS:.\SYSTEM$;DEADXACT", r"DIRECT=OS:hosta\SYSTEM$;DEADXACT"),
        ("system$;deadletter", r"DIRECT=OS:hosta\SYSTEM$;DEADLETTER"),
        ("system$;journal@hostb", r"DIRECT=OS:hostb\SYSTEM$;JOURNAL"),
        ("orders@hostb", r"DIRECT=OS:hostb\private$\orders"),
        ("orders@hostb:1802", r"DIRECT=OS:hostb:1802\private$\orders"),
        ("orders@10.0.0.5", r"DIRECT=TCP:10.0.0.5\private$\orders"),
        ("orders@10.0.0.5:1802", r"DIRECT=TCP:10.0.0.5:1802\private$\orders"),
        ("orders@::1", r"DIRECT=TCP:::1\private$\orders"),
        ("orders@[::1]:1802", r"DIRECT=TCP:[::1]:1802\private$\orders"),
        ("a@b@hostb", r"DIRECT=OS:hostb\private$\a@b"),
        (r"private$\orders@hostb", r"DIRECT=OS:hostb\private$\orders"),
        (r"hostb\private$\orders", r"DIRECT=OS:hostb\private$\orders"),
        (r"hostb\private$\a@b", r"DIRECT=OS:hostb\private$\a@b"),
        (r"hostb:1802\orders", r"DIRECT=OS:hostb:1802\orders"),
        (r"10.0.0.5\private$\orders", r"DIRECT=TCP:10.0.0.5\private$\orders"),
        (r"TCP:10.0.0.5\orders", r"DIRECT=TCP:10.0.0.5\orders"),
        (r"os:hostb\orders", r"DIRECT=OS:hostb\orders"),
        ("http://./msmq/orders", r"DIRECT=HTTP://./MSMQ\orders"),
        ("https://hostb/msmq/orders", r"DIRECT=HTTPS://hostb/MSMQ\orders"),
        (r"FormatName:Direct=os:hostb\orders", r"DIRECT=OS:hostb\orders"),
        (r"hostb\Journal$", r"DIRECT=OS:hostb\SYSTEM$;JOURNAL"),
        (r".\DeadLetter$", r"DIRECT=OS:hosta\SYSTEM$;DEADLETTER"),
        (r".\XactDeadLetter$", r"DIRECT=OS:hosta\SYSTEM$;DEADXACT"),
        (r"hostb\private$\orders\Journal$", r"DIRECT=OS:hostb\private$\orders;JOURNAL"),
        (r"private$\orders\journal$", r"DIRECT=OS:hosta\private$\orders;JOURNAL"),
        (f"public={GUID}", f"PUBLIC={GUID}"),
        ("a=b", r"DIRECT=OS:hosta\private$\a=b"),
        (
            r"orders@hostb,.\orders,PUBLIC=" + GUID,
            rf"DIRECT=OS:hostb\private$\orders,DIRECT=OS:hosta\orders,PUBLIC={GUID}",
        ),
    ],
)
def test_any_spelling_of_a_destination_is_read(text: str, canonical: str) -> None:
    assert destination(text) == canonical


@pytest.mark.parametrize(
    ("local_host", "canonical"),
    [
        ("10.0.0.5", r"DIRECT=TCP:10.0.0.5\private$\q"),
        ("::1", r"DIRECT=TCP:::1\private$\q"),
        ("hosta:1802", r"DIRECT=OS:hosta:1802\private$\q"),
        (".", r"DIRECT=OS:.\private$\q"),
    ],
)
def test_the_local_host_may_be_an_address(local_host: str, canonical: str) -> None:
    assert str(parse_destination("q", local_host=local_host)) == canonical


@pytest.mark.parametrize(
    ("text", "field", "offset"),
    [
        ("", "destination.queue", 0),
        ("two\twords", "destination.queue", 3),
        (" words", "destination.queue", 0),
        ("orders@", "destination.host", 7),
        ("orders@host b", "destination.host", 11),
        ("orders@10.0.0.999", "destination.host", 14),
        ("orders@hostb:x", "destination.port", 13),
        ("@hostb", "destination.queue", 0),
        (r"\orders", "destination.host", 0),
        (r"hostb\a+b", "destination.queue", 7),
        (r"hostb\a;s\Journal$", "destination.subqueue", 9),
        ("private$", "destination.queue", 0),
        ("SPX:1:2\\q", "direct.protocol", 0),
        (r"FormatName:DIRECT=OS:h\a+b", "direct.queue", 24),
        ("orders@hostb,a+b@hostb", "element[1].destination.queue", 14),
        ("orders@hostb,q;journal@hostb", "element[1]", 13),
    ],
)
def test_an_invalid_destination_is_refused(text: str, field: str, offset: int) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_destination(text, local_host="hosta")

    assert (caught.value.field, caught.value.offset) == (field, offset)


# The rest


def test_the_manual_gives_the_meaning_of_each_spelling() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "names.md").read_text()
    table = manual.partition("| you write | means |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", table, flags=re.MULTILINE)
    # For names that only a directory can resolve, the manual gives the meaning in words.
    said = re.findall(r"^\| `.+` \| [^`].* \|$", table, flags=re.MULTILINE)

    assert len(rows) + len(said) == table.count("\n") - 1
    for written, means in rows:
        assert destination(written) == means


def test_names_are_imported_without_construct() -> None:
    program = "import sys, protocol.names.format_name; sys.exit('construct' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
