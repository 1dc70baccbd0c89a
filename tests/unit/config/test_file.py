"""The configuration file: defaults, overrides, the file of `qmd init`, and precise errors."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import fields, replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from qmd.config.file import (
    ConfigError,
    Settings,
    load_settings,
    parse_settings,
    reference,
    write_default_config,
)
from qmd.config.settings import SECTIONS, settings_of
from qmd.config.value_types import (
    Duration,
    Durations,
    OptionalDuration,
    OptionalSize,
    Size,
    Whole,
)

ROOT = Path(__file__).parents[3]
FILE = Path("/etc/qmd/qmd.toml")
ALL_SETTINGS = [setting for section in SECTIONS for setting in settings_of(section).values()]


def parse(text: str, **environment: str) -> Settings:
    return parse_settings(text, file=FILE, environment=environment)


def refusal(text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environment)
    return str(caught.value)


# Reading


def test_an_empty_file_means_the_defaults() -> None:
    settings = parse("")

    assert settings.queue_manager.name == os.uname().nodename
    assert settings.queue_manager.data == Path("/etc/qmd/data")
    assert (settings.listen.address, settings.listen.port) == ("127.0.0.1", 1801)
    assert settings.peers.allow == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert settings.control.socket == Path("/etc/qmd/qmd.sock")
    assert settings.control.mode == 0o660
    assert settings.quotas.computer_bytes == 8_000_000_000
    assert settings.quotas.message_bytes_max == 0x400000
    assert settings.delivery.time_to_reach_queue_s == 345_600
    assert settings.delivery.ack_timeout_s == 20
    assert settings.delivery.resend_s == (30, 30, 30, 300, 300, 300, 1800, 1800, 1800, 21600)
    assert settings.delivery.acknowledge_at_once is True
    assert settings.log.format == "auto"


def test_settings_without_a_file_have_the_same_defaults_with_relative_paths() -> None:
    settings, bare = parse(""), Settings()

    assert bare.queue_manager.data == Path("data")
    assert bare.delivery == settings.delivery
    assert replace(bare.control, socket=FILE.parent / "qmd.sock") == settings.control


def test_values_of_every_type_are_read() -> None:
    settings = parse(
        """
        [queue_manager]
        name = "hosta"
        aliases = ["hosta.example.com", "alias"]
        data = "/var/lib/qmd"
        [listen]
        address = "0:0::0"
        port = 0
        ping = true
        [peers]
        allow = ["10.0.0.0/8", "192.168.1.7"]
        [control]
        socket = "../run/qmd.sock"
        mode = "0600"
        [quotas]
        queue = "64KiB"
        [delivery]
        retry_first = "20ms"
        resend = ["1s", "2s"]
        [log]
        level = "debug"
        """
    )

    assert settings.queue_manager.name == "hosta"
    assert settings.queue_manager.aliases == ("hosta.example.com", "alias")
    assert settings.queue_manager.data == Path("/var/lib/qmd")
    assert settings.listen.address == "::"
    assert (settings.listen.port, settings.listen.ping) == (0, True)
    assert settings.peers.allow == (ip_network("10.0.0.0/8"), ip_network("192.168.1.7/32"))
    assert settings.control.socket == Path("/etc/qmd/../run/qmd.sock")
    assert settings.control.mode == 0o600
    assert settings.quotas.queue_bytes == 65536
    assert settings.delivery.retry_first_s == 0.02
    assert settings.delivery.resend_s == (1, 2)
    assert settings.log.level == "debug"


def test_the_list_of_allowed_hosts_may_be_empty() -> None:
    assert parse("[peers]\nallow = []").peers.allow == ()


def test_relative_paths_start_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "qmd.toml").write_text('[queue_manager]\ndata = "messages"\n')
    monkeypatch.chdir(tmp_path)

    settings = load_settings(Path("here/qmd.toml"), environment={})

    assert settings.queue_manager.data == tmp_path / "here" / "messages"


# The environment


def test_the_environment_overrides_the_file() -> None:
    settings = parse(
        '[listen]\nport = 1801\n[delivery]\nack_timeout = 5\n[queue_manager]\naliases = ["a"]',
        QMD_LISTEN_PORT="1802",
        QMD_LISTEN_PING="true",
        QMD_QUEUE_MANAGER_NAME="hostb",
        QMD_QUEUE_MANAGER_DATA="/srv/qmd",
        QMD_PEERS_ALLOW="10.0.0.0/8, ::1",
        QMD_DELIVERY_ACK_TIMEOUT="30s",
        QMD_DELIVERY_RESEND="1s,2s",
        QMD_QUEUE_MANAGER_ALIASES="",
        QMD_CONFIG="/etc/qmd/qmd.toml",
        HOME="/root",
    )

    assert (settings.listen.port, settings.listen.ping) == (1802, True)
    assert settings.queue_manager.name == "hostb"
    assert settings.queue_manager.data == Path("/srv/qmd")
    assert settings.queue_manager.aliases == ()
    assert settings.peers.allow == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert settings.delivery.ack_timeout_s == 30
    assert settings.delivery.resend_s == (1, 2)


def test_the_process_environment_is_used_when_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qmd.toml").write_text("")
    monkeypatch.setenv("QMD_LISTEN_PORT", "4321")

    assert load_settings(tmp_path / "qmd.toml").listen.port == 4321


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (
            "QMD_LISTEN_PORT",
            "many",
            'environment variable QMD_LISTEN_PORT: found "many"; '
            "allowed is a whole number from 0 to 65535",
        ),
        (
            "QMD_LISTEN_PORT",
            "65536",
            "environment variable QMD_LISTEN_PORT: found 65536; "
            "allowed is a whole number from 0 to 65535",
        ),
        (
            "QMD_LISTEN_PING",
            "yes",
            'environment variable QMD_LISTEN_PING: found "yes"; allowed is true or false',
        ),
        (
            "QMD_LISTEN_PROT",
            "1802",
            "environment variable QMD_LISTEN_PROT: unknown key; did you mean port?",
        ),
    ],
)
def test_an_invalid_override_is_refused_with_its_name(
    variable: str, value: str, problem: str
) -> None:
    assert refusal("", **{variable: value}) == problem


# Refusing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n[lisen]\nport = 1", ":2: [lisen]: unknown section; did you mean [listen]?"),
        ("port = 1801", ":1: [port]: port is a key of [listen], and stands outside of it"),
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


# The file of `qmd init`


def test_the_written_file_loads_to_the_defaults(tmp_path: Path) -> None:
    file = write_default_config(tmp_path / "a", listen="127.0.0.1:1899", name="hosta")

    settings = load_settings(file, environment={})
    defaults = parse_settings("", file=file, environment={})
    assert file == tmp_path / "a" / "qmd.toml"
    assert settings == replace(
        defaults,
        queue_manager=replace(defaults.queue_manager, name="hosta"),
        listen=replace(defaults.listen, port=1899),
    )
    assert settings.control.socket == tmp_path / "a" / "qmd.sock"
    assert settings.queue_manager.data == tmp_path / "a" / "data"


def test_the_defaults_in_its_comments_are_right(tmp_path: Path) -> None:
    file = write_default_config(tmp_path, listen="127.0.0.1:1801", name="")
    text = file.read_text()

    uncommented = re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE)

    assert uncommented.count(" = ") == len(ALL_SETTINGS)
    assert parse_settings(uncommented, file=file, environment={}) == parse_settings(
        "", file=file, environment={}
    )


def test_the_written_file_has_every_section_key_meaning_and_limit(tmp_path: Path) -> None:
    text = write_default_config(tmp_path, listen="127.0.0.1:1801", name="x").read_text()

    for setting in ALL_SETTINGS:
        assert f"\n[{setting.section}]\n" in text
        assert f"# {setting.meaning}\n# Allowed: {setting.kind.allowed}\n" in text


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_written_file_is_private_to_its_owner_and_group_with_any_umask(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        file = write_default_config(tmp_path / "new", listen="[::1]:0", name="hosta")
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert load_settings(file, environment={}).listen.address == "::1"


def test_the_environment_does_not_change_the_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QMD_LISTEN_PORT", "wrong")

    assert write_default_config(tmp_path, listen="127.0.0.1:1801", name="hosta").exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "qmd.toml").write_text("mine")

    with pytest.raises(ConfigError) as caught:
        write_default_config(tmp_path, listen="127.0.0.1:1801", name="hosta")

    assert str(caught.value) == f"{tmp_path}/qmd.toml: not written: File exists"
    assert (tmp_path / "qmd.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("listen", "name", "problem"),
    [
        ("127.0.0.1", "h", "listen: found '127.0.0.1'; address:port is required"),
        ("127.0.0.1:", "h", "listen: found '127.0.0.1:'; address:port is required"),
        ("hosta:1801", "h", '[listen] address: found "hosta"'),
        (":1801", "h", '[listen] address: found ""'),
        ("127.0.0.1:65536", "h", "[listen] port: found 65536"),
        ("127.0.0.1:1801", 'h"\n', "[queue_manager] name: found"),
    ],
)
def test_no_file_is_written_after_an_error(
    tmp_path: Path, listen: str, name: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        write_default_config(tmp_path / "new", listen=listen, name=name)

    assert str(caught.value).startswith(problem)
    assert not (tmp_path / "new").exists()


def test_no_file_is_written_if_the_socket_path_would_be_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the path of a Unix socket at most 107"):
        write_default_config(tmp_path / ("d" * 120), listen="127.0.0.1:1801", name="hosta")

    assert list(tmp_path.iterdir()) == []


# The declaration


def test_an_attribute_is_named_like_its_key_with_the_unit_as_suffix() -> None:
    units = {
        Duration: "_s",
        OptionalDuration: "_s",
        Durations: "_s",
        Size: "_bytes",
        OptionalSize: "_bytes",
    }

    for setting in ALL_SETTINGS:
        unit = units.get(type(setting.kind), "")
        assert setting.attribute in (setting.key + unit, setting.key)
        assert setting.attribute.endswith(unit) or setting.key.endswith("_bytes_max")


def test_every_section_is_part_of_the_settings() -> None:
    assert {item.name: item.type for item in fields(Settings)} == {
        section: declaration.__name__ for section, declaration in SECTIONS.items()
    }


def test_the_limits_of_a_value_are_inclusive() -> None:
    for setting in ALL_SETTINGS:
        if isinstance(setting.kind, Duration | Size | Whole):
            least, most = (
                setting.kind.parse(setting.kind.least),
                setting.kind.parse(setting.kind.most),
            )
            assert least < most


def test_the_manual_has_the_tables_of_the_declaration() -> None:
    manual = (ROOT / "docs" / "configuration.md").read_text()

    assert manual.endswith(reference())


def test_the_import_is_light() -> None:
    heavy = "asyncio construct structlog msgspec aiosqlite socket tomllib difflib logging"
    program = f"import sys, qmd.config.file; print(*(set(sys.modules) & set({heavy.split()})))"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == ""
