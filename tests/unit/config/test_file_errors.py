"""Errors of the configuration file: each with its line and the allowed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.config.file import ConfigError, load_settings, parse_settings
from tests.unit.config.parsing import parse, refusal

# Refusing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n[lisen]\nport = 1", ":2: [lisen]: unknown section; did you mean [listen]?"),
        ("port = 1801", ":1: [port]: port is a key of [listen], and is outside of it"),
        ("pear = 1801", ":1: [pear]: unknown section; did you mean [peers]?"),
        ("[listen]\n\nprot = 1", ":3: [listen] prot: unknown key; did you mean port?"),
        (
            "[listen]\nwindow_size = 1",
            ":2: [listen] window_size: unknown key here; it belongs to [delivery]",
        ),
        ("listen = 5", ":1: [listen]: found 5; a section [listen] is required"),
        (
            "[[listen]]\nport = 1",
            ":1: [listen]: found [{'port': 1}]; a section [listen] is required",
        ),
        ("[listen.port]\nx = 1", ":1: [listen] port: found {'x': 1}; allowed is"),
        ("listen = { port = 1, prot = 2 }", ":1: [listen] prot: unknown key"),
        ("log.level = 5", ":1: [log] level: found 5"),
        ('\n"listen"."prot" = 5', ":2: [listen] prot: unknown key"),
        ("[listen]\nport = = 1", ":2: Invalid value"),
        ("[listen]\nport = 1\nport = 2", ":3: Cannot overwrite a value"),
        ('[log]\nlevel = "info', ":2: "),
        ("[log]\nlevel = [\n\n", ":3: Invalid value"),
    ],
)
def test_a_mistake_is_refused_with_its_line(text: str, problem: str) -> None:
    assert refusal(text).startswith(f"/etc/qmd/qmd.toml{problem}")


@pytest.mark.parametrize(
    ("section", "line", "problem"),
    [
        ("queue_manager", "name = 5", "found 5; allowed is a computer name of at most 256"),
        ("queue_manager", 'name = "a b"', "(name at offset 1: found ' '; allowed are"),
        ("queue_manager", 'aliases = "a"', 'found "a"; allowed is a list of computer names'),
        ("queue_manager", 'aliases = ["a", ""]', "(name at offset 0: found nothing"),
        ("queue_manager", "aliases = [5]", "found [5]; allowed is a list"),
        ("queue_manager", 'data = ""', 'found ""; allowed is a path'),
        ("queue_manager", "run_as_root = 1", "found 1; allowed is true or false"),
        ("listen", 'address = "hosta"', "('hosta' does not appear to be an IPv4 or IPv6 address)"),
        ("listen", "address = 1", "found 1; allowed is an IPv4 or IPv6 address"),
        ("listen", "port = 65536", "found 65536; allowed is a whole number from 0 to 65535"),
        ("listen", "port = -1", "found -1; allowed is a whole number from 0 to 65535"),
        ("listen", "port = true", "found true; allowed is a whole number"),
        ("listen", "port = 1.0", "found 1.0; allowed is a whole number"),
        ("listen", 'port = "1801"', 'found "1801"; allowed is a whole number'),
        ("peers", 'allow = "10.0.0.0/8"', 'found "10.0.0.0/8"; allowed is a list of networks'),
        ("peers", 'allow = ["10.0.0.1/8"]', "(10.0.0.1/8 has host bits set)"),
        ("peers", "allow = [1]", "found [1]; allowed is a list of networks"),
        ("peers", 'large_messages = ["10.0.0.1/8"]', "(10.0.0.1/8 has host bits set)"),
        ("peers", 'large_messages = ["10.0.0"]', "'10.0.0' does not appear to be"),
        ("peers", "large_messages = [1]", "found [1]; allowed is a list of networks"),
        ("control", 'mode = "660"', 'found "660"; allowed is the permissions of a file in octal'),
        ("control", 'mode = "0670"', 'found "0670"; allowed is'),
        ("control", 'mode = "0066"', 'found "0066"; allowed is'),
        ("control", 'mode = "1660"', 'found "1660"; allowed is'),
        ("control", 'mode = "0690"', 'found "0690"; allowed is'),
        ("control", r'group = "a\n"', 'found "a\\U0000000a"; allowed is text'),
        ("quotas", 'queue = "4"', 'found "4"; allowed is "1kB" to "1000TB" (a whole number and a'),
        ("quotas", "queue = 4", 'found 4; allowed is "1kB" to "1000TB" (write a whole number and'),
        ("quotas", 'message_bytes_max = "64MiB"', 'found "64MiB"; allowed is "1kB" to "48MiB"'),
        ("delivery", "ack_timeout = 20", 'found 20; allowed is "10ms" to "120s" (write a whole'),
        ("delivery", 'ack_timeout = "121s"', 'found "121s"; allowed is "10ms" to "120s"'),
        ("delivery", "resend = []", "found []; allowed is a list of 1 to 32 durations"),
        ("delivery", 'resend = ["1s", "8d"]', 'found ["1s", "8d"]; allowed is a list'),
        ("delivery", "window_size = 0", "found 0; allowed is a whole number from 1 to 32767"),
        ("delivery", "insecure_nacks = 1979-05-27", "found datetime.date(1979, 5, 27); allowed"),
        ("log", 'level = "INFO"', 'found "INFO"; allowed is "debug" or "info" or "warning" or'),
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_values(
    section: str, line: str, problem: str
) -> None:
    text = f"# [{section}] {line}\n[{section}]\n\n{line}\n"

    message = refusal(text)

    assert message.startswith(f"/etc/qmd/qmd.toml:4: [{section}] {line.partition(' ')[0]}: found ")
    assert problem in message
    assert "\n" not in message


def test_all_errors_of_a_file_are_reported_in_the_order_of_their_lines() -> None:
    text = "[listen]\nport = 99999\n[lisen]\nx = 1\n[quotas]\nnothing = 1\n[peers]\nallow = 7\n"

    with pytest.raises(ConfigError) as raised:
        parse(text, QMD_LISTEN_PORT="none", QMD_PEERS_NOTHING="1")

    found = [raised.value, *raised.value.others]
    assert [(error.line, error.code) for error in found] == [
        (None, "config_unknown_key"),
        (None, "config_bad_value"),
        (3, "config_unknown_section"),
        (6, "config_unknown_key"),
        (8, "config_bad_value"),
    ]


def test_contradictions_are_reported_together() -> None:
    long = "x" * 200
    text = f"""[control]
socket = "/{long}"
[delivery]
retry_first = "30m"
retry_max = "10m"
"""

    with pytest.raises(ConfigError) as raised:
        parse(text)

    assert [error.line for error in (raised.value, *raised.value.others)] == [2, 4]


def test_the_line_of_a_value_over_several_lines_is_its_first() -> None:
    text = '[queue_manager]\naliases = [\n  "allow",\n]\n[peers]\n# allow =\nallow = [\n  "x",\n]\n'

    assert refusal(text).startswith("/etc/qmd/qmd.toml:7: [peers] allow: ")


def test_a_key_of_the_same_name_in_another_section_is_not_blamed() -> None:
    text = '[control]\nmode = "0660"\n[log]\nmode = "x"\n'

    assert refusal(text).startswith("/etc/qmd/qmd.toml:4: [log] mode: unknown key here; it belongs")


def test_a_long_value_is_cut_in_the_message() -> None:
    value = "x" * 5000

    assert len(refusal(f'[log]\nlevel = "{value}"')) < 300


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000, "a = " + "{a = " * 5000, "a = " + "9" * 5000, "a = 0x" + "f" * 60_000],
    ids=["arrays", "tables", "digits", "hexadecimal digits"],
)
def test_a_file_that_the_parser_of_python_rejects_is_refused(text: str) -> None:
    assert refusal(text).startswith("/etc/qmd/qmd.toml:")
    assert refusal(f"[listen]\nport{text[1:]}").startswith("/etc/qmd/qmd.toml:")


def test_every_error_is_one_line() -> None:
    for error in (
        refusal('[log]\n"a\\nb" = 1'),
        refusal("", QMD_CONTROL_SOCKET="a\n" * 60),
        refusal('[log]\nlevel = "\\u001b[2J"'),
    ):
        assert error.isprintable()


def test_lines_are_counted_by_the_rules_of_toml() -> None:
    assert refusal("# \u2028 \x85 \u2029\n[log]\nlevle = 1").startswith("/etc/qmd/qmd.toml:3: ")


def test_the_search_for_the_line_of_a_fault_is_bounded() -> None:
    text = '[log]\nlevel = """\n' + "levle\n" * 5000 + '"""\nlevle = 1\n'

    assert refusal(text) == "/etc/qmd/qmd.toml: [log] levle: unknown key; did you mean level?"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[peers]\nsessions_max = 10",
            ":2: [peers] sessions_max: sessions_per_peer_max is greater than sessions_max",
        ),
        (
            '[delivery]\n\nretry_first = "31s"',
            ":3: [delivery] retry_first: retry_first is greater than retry_max",
        ),
        (
            '[delivery]\norder_ack_delay_max = "100ms"',
            ":2: [delivery] order_ack_delay_max: order_ack_timeout is greater than",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(text: str, problem: str) -> None:
    assert refusal(text).startswith(f"/etc/qmd/qmd.toml{problem}")


def test_a_socket_path_may_have_107_bytes_and_no_more() -> None:
    fits = "/" + "s" * 106

    assert parse(f'[control]\nsocket = "{fits}"').control.socket == Path(fits)
    assert refusal(f'[control]\nsocket = "{fits}s"') == (
        f"/etc/qmd/qmd.toml:2: [control] socket: {fits}s has 108 bytes, and the path of a Unix "
        "socket at most 107; give a shorter one, for example /run/qmd/qmd.sock"
    )


def test_the_length_of_a_socket_path_is_counted_in_bytes() -> None:
    path = "/" + "\u00e9" * 54

    assert "has 109 bytes" in refusal(f'[control]\nsocket = "{path}"')


def test_a_default_socket_in_a_deep_folder_is_refused_as_well() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings("", file=Path("/" + "d" * 120) / "qmd.toml", environment={})

    assert (caught.value.key, caught.value.line) == ("[control] socket", None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "qmd.toml: No such file or directory"),
        (b"[log]\n# \xff\n", "qmd.toml:2: not UTF-8 text"),
        ("[log]\n".encode("utf-16"), "qmd.toml:1: UTF-16 text: save it as UTF-8"),
        (b"#" * 65537, "qmd.toml: longer than 65536 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "qmd.toml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_settings(file, environment={})

    assert str(caught.value) == f"{tmp_path}/{problem}"


def test_a_folder_in_place_of_the_configuration_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_settings(tmp_path, environment={})
