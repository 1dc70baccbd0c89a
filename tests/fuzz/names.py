"""Targets: names of queues and configuration files, as people and packets spell them.

For any text a parser returns a name or raises InvalidName with an offset in the text; and a printed
name is read back as the same name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text, parse_message_id
from protocol.names.format_name import (
    DirectName,
    FormatName,
    parse_destination,
    parse_format_name,
    parse_path_name,
    parse_wire_name,
    queue_key,
)
from qmd.config.file import ConfigError, parse_settings, write_default_config
from qmd.config.settings import SECTIONS, settings_of
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

GUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
NAMES = (
    *("DIRECT=TCP:10.0.0.5\\private$\\orders", "DIRECT=OS:hostb\\orders;JOURNAL"),
    *("DIRECT=TCP:[::1]:1802\\q", "DIRECT=TCP:fe80::1%eth0\\private$\\q;retry"),
    *("DIRECT=HTTP://hostb:8080/MSMQ/private$/orders", "DIRECT=OS:.\\SYSTEM$;DEADXACT"),
    *(f"PUBLIC={GUID};JOURNAL", f"PRIVATE={GUID}\\0000001a", f"DL={GUID}@example.org"),
    *(f"MACHINE={GUID};DEADLETTER", f"CONNECTOR={GUID};XACTONLY", "MULTICAST=224.0.0.1:8001"),
    f"DIRECT=OS:a\\q,PRIVATE={GUID}\\1,PUBLIC={GUID}",
    *("orders@hostb", "orders@10.0.0.5:1802", "hostb\\private$\\orders", ".\\private$\\orders"),
    *("private$\\orders", "orders", "FormatName:DIRECT=OS:a\\q", "hostb\\orders\\Journal$"),
    *("hostb\\system$;journal", "hostb\\DeadLetter$", f"{GUID}\\42", f"{{{GUID}}}"),
)
TOKENS = (
    *("DIRECT=", "PUBLIC=", "PRIVATE=", "DL=", "MACHINE=", "CONNECTOR=", "MULTICAST=", "TCP:"),
    *("OS:", "HTTP://", "https://", "SPX:", "/MSMQ", "private$\\", "SYSTEM$;", ";JOURNAL", ";"),
    *(";DEADXACT", ";XACTONLY", "\\Journal$", "XactDeadLetter$", "@", ",", "[::1]", ":1801", ":"),
    *("::ffff:1.2.3.4", "%1", "224.0.0.1", "0", "65536", "\\", "/", ".", "{", "}", GUID, "q" * 125),
    *(
        "K",
        "\u017f",
        "\u0130",
        "\0",
        "\ud800",
        "\U0001f600",
        " ",
        "\t",
        '"',
        "+",
        "\x7f",
        "\x80",
        "\uff11",
    ),
)

CONFIGURATION = Path("/nowhere/qmd.toml")
# Python's own reader of TOML needs a second for a key of 10,000 dotted parts.  The file is the
# operator's, and at most 64 KiB long.
CONFIGURATION_S_MAX = 5.0
SEED_STEP = 12
KEYS = [
    (setting.section, setting.key, setting.default)
    for section in SECTIONS
    for setting in settings_of(section).values()
]
VALUES = (
    *("0", "1", "-1", "65536", "1e400", "nan", "inf", "true", "''", '"30s"', '"4d"', '"64KiB"'),
    *('"999999999999999999d"', '"0x10"', "0o640", "[]", '["127.0.0.0/8"]', '["::/0", 1]', "{}"),
    *("1979-05-27", "07:32:00", '"""\na\n"""', "[" * 40, "9" * 40, '"\\u0000"', '"\\U0010FFFF"'),
    *(
        '"/a/b"',
        '"."',
        '"info"',
        '"json"',
        '"a b"',
        '"1.2.3.4"',
        '"::1"',
        "'''",
        '"é"',
        '"\\ud800"',
    ),
)


# Checks.


def check_names(data: bytes) -> None:
    """Check every parser of names with any text."""
    text = _text(data)
    if (name := _read(parse_format_name, text)) is not None:
        _check_format_name(name)
    if (name := _read(lambda it: parse_destination(it, local_host="hosta"), text)) is not None:
        _check_format_name(name)
    if (path := _read(parse_path_name, text)) is not None:
        assert parse_path_name(str(path)) == path
        assert parse_path_name(_other_case(str(path))).key == path.key
    if (guid := _read(guid_bytes, text)) is not None:
        assert guid_bytes(guid_text(guid)) == guid
    _read(parse_message_id, text)


def _text(data: bytes) -> str:
    """Return a text with halves of surrogate pairs, which a message's text can have."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _other_case(text: str) -> str:
    """Return a name in its other case, but with the small sigma: no name has the capital one."""
    return text.swapcase().replace("\N{GREEK CAPITAL LETTER SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")


def _check_format_name(name: FormatName) -> None:
    printed = str(name)
    assert parse_format_name(printed) == name
    assert parse_format_name(_other_case(printed)).key == name.key
    if isinstance(name, DirectName):
        assert queue_key(name) == name.local_path.key
        again = parse_wire_name(name.wire_bytes())
        assert again.local_path == name.local_path
        assert again.host == name.host


def check_wire_name(data: bytes) -> None:
    """Check the direct name of a packet with any bytes."""
    name = _read(parse_wire_name, data)
    if name is not None:
        _check_format_name(name)


def _read(parse: Callable[[Any], Any], text: Any) -> Any:
    name, refused = outcome(InvalidName, parse, text)
    if refused is not None:
        assert refused.field
        assert refused.rule
        assert 0 <= refused.offset <= len(text)
        str(refused).encode()  # the error can be printed
    return name


def check_configuration(data: bytes) -> None:
    """Check any text as a configuration file, and as one value from the environment."""
    text = data.decode("utf-8", "replace")
    _configure(text, {})
    section, key, _ = KEYS[zlib.crc32(data) % len(KEYS)]
    if "\0" not in text:
        _configure("", {f"QMD_{section}_{key}".upper(): text})


def _configure(text: str, environment: dict[str, str]) -> None:
    def parse() -> object:
        return parse_settings(text, file=CONFIGURATION, environment=environment)

    _, error = outcome(ConfigError, parse, seconds_max=CONFIGURATION_S_MAX)
    if error is not None:
        assert error.problem
        assert str(error).isprintable(), "one line, for people"
        assert error.line is None or 1 <= error.line <= text.count("\n") + 1


# Seeds and mutations.


def configurations() -> Iterable[bytes]:
    yield b""
    yield _default_configuration().encode()
    for section, key, _ in KEYS:
        # A few values of each key, others of the next one: mutations find the remaining pairs.
        for value in VALUES[zlib.crc32(key.encode()) % SEED_STEP :: SEED_STEP]:
            yield f"[{section}]\n{key} = {value}\n".encode()
    yield b'[log]\nlevel = """\n' + b"level\n" * 40 + b'"""\nlevle = 1\n'


def _default_configuration() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = write_default_config(Path(folder) / "q", listen="127.0.0.1:1801", name="hosta")
        return file.read_text()


def mutate_name(data: bytes, size_max: int, random: Random) -> bytes:
    """Insert, remove or move words of the grammar."""
    text = data.decode("utf-8", "replace")
    for _ in range(random.choice((1, 1, 2, 4))):
        at, until = sorted(random.randint(0, len(text)) for _ in range(2))
        match random.randrange(5):
            case 0:
                text = text[:at] + text[until:]
            case 1:
                text = random.choice(NAMES)[: until + 40] + random.choice((",", ";", "")) + text
            case 2:
                text = text.swapcase()
            case _:
                text = text[:at] + random.choice(TOKENS) + text[at:]
    return text.encode("utf-8", "surrogatepass")[:size_max]


def mutate_wire_name(data: bytes, size_max: int, random: Random) -> bytes:
    text = data.decode("utf-16-le", "replace").removesuffix("\0").encode()
    mutated = mutate_name(text, size_max // 2, random).decode("utf-8", "replace") + "\0"
    return mutated.encode("utf-16-le")[: size_max - random.choice((0, 0, 0, 1))]


def mutate_configuration(data: bytes, size_max: int, random: Random) -> bytes:
    """Change lines of TOML: other values and sections, lost and doubled lines."""
    lines = data.decode("utf-8", "replace").split("\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        section, key, _ = random.choice(KEYS)
        match random.randrange(6):
            case 0:
                del lines[at : at + random.choice((1, 1, 10))]
                lines = lines or [""]
            case 1:
                lines[at:at] = [f"[{section}]"]
            case 2:
                lines[at] = lines[at].partition("=")[0] + "= " + random.choice(VALUES)
            case 3:
                lines[at:at] = [random.choice(VALUES)] * random.choice((1, 1, 50))
            case _:
                lines[at:at] = [f"{key} = {random.choice(VALUES)}"]
    return "\n".join(lines).encode("utf-8", "replace")[:size_max]


TARGETS = (
    Target("names", check_names, lambda: (name.encode() for name in NAMES), mutate_name),
    Target(
        "wire_name",
        check_wire_name,
        lambda: (f"{name}\0".removeprefix("DIRECT=").encode("utf-16-le") for name in NAMES),
        mutate_wire_name,
    ),
    Target("configuration", check_configuration, configurations, mutate_configuration),
)
