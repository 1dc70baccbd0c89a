"""The configuration file: defaults, overrides, and the file of `qmd init`."""

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
    read_effective,
    reference,
    write_default_config,
)
from qmd.config.settings import SECTIONS, settings_of
from qmd.config.value_types import Duration, Durations, OptionalDuration, OptionalSize, Size, Whole
from tests.unit.config.parsing import FILE, parse, refusal

ROOT = Path(__file__).parents[3]
ALL_SETTINGS = [setting for section in SECTIONS for setting in settings_of(section).values()]


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


def test_a_file_of_an_editor_of_windows_is_read(tmp_path: Path) -> None:
    file = tmp_path / "qmd.toml"
    file.write_bytes(b"\xef\xbb\xbf[listen]\r\nport = 1999\r\n")

    assert load_settings(file, environment={}).listen.port == 1999
    (port,) = [each for each in read_effective(file, {}) if not each.is_default]
    assert (port.key, port.value, port.source) == ("port", "1999", f"{file}:2")


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
