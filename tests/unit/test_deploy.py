"""The installed service: the unit, its sandbox, and the example configurations."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qmd.cli.program import ExitCode
from qmd.config.file import load_settings, write_default_config
from release.manual import commands
from tests.patience import END_S

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
EXPOSURE_MAX = 2.0

#: The unit of each service takes these rights away from it.
SANDBOX = {
    "AmbientCapabilities": "",
    "CapabilityBoundingSet": "",
    "DevicePolicy": "closed",
    "KeyringMode": "private",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "PrivateMounts": "yes",
    "PrivateTmp": "yes",
    "ProcSubset": "pid",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RemoveIPC": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}
#: The unit that listens on port 80.
LOW_PORTS = dict.fromkeys(("AmbientCapabilities", "CapabilityBoundingSet"), "CAP_NET_BIND_SERVICE")
CLIENTS = (
    *("bridge", "console", "door-http", "door-amqp", "door-metrics", "door-srmp", "traces"),
    "trigger",
)
DOORS = [f"qmd-{name}.service" for name in CLIENTS]

#: The files of each other service, and its state folder in place of that of the configuration.
STATES = {
    'users = "door-users': "/var/lib/qmd-door-amqp/users",
    'pushes = "pushes': "/var/lib/qmd-door-http/pushes",
    'streams = "srmp-streams': "/var/lib/qmd-door-srmp/streams",
    'file = "triggers': "/var/lib/qmd-trigger/triggers",
    'users = "console-users': "/var/lib/qmd-console/users",
}

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analyze(*words):
    command = ["systemd-analyze", "--no-pager", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=END_S)


def settings(unit):
    """Return name -> value of the settings of a unit file; the last value counts."""
    return dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / unit).read_text(), re.MULTILINE))


@needs_systemd_analyze
def test_the_sandbox_is_rated_tight():
    result = analyze("security", "--offline=true", DEPLOY / "qmd.service")

    rating = re.search(r"exposure level for qmd\.service: ([0-9.]+)", result.stdout)
    assert rating is not None, result.stderr
    assert float(rating[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", ["qmd.service", *DOORS])
def test_no_protection_of_the_sandbox_is_missing(unit):
    """The rating is a sum, in which one missing line hardly shows."""
    wanted = SANDBOX | (LOW_PORTS if unit == "qmd-door-srmp.service" else {})
    if unit == "qmd.service":
        # It reads the control groups of its clients, for rights of `service:NAME`.
        wanted |= {"ProtectProc": "default"}
    found = settings(unit)

    assert {name: found.get(name) for name in wanted} == wanted
    filters = re.findall(r"^SystemCallFilter=(.*)$", (DEPLOY / unit).read_text(), re.MULTILINE)
    assert filters[0] == "@system-service"
    assert "@privileged" in filters[1]
    assert filters[1].startswith("~")


@needs_systemd_analyze
@pytest.mark.parametrize("unit", DOORS)
def test_the_sandbox_of_a_door_is_rated_tight(unit):
    result = analyze("security", "--offline=true", DEPLOY / unit)

    rating = re.search(r"exposure level for .*: ([0-9.]+)", result.stdout)
    assert rating is not None, result.stderr
    assert float(rating[1]) <= EXPOSURE_MAX


@needs_systemd_analyze
def test_systemd_understands_every_line_of_the_units(tmp_path):
    """The check runs with an existing command in the place of the installed one."""
    shipping = ("qmd-ship.service", "qmd-ship.timer")
    for unit in ("qmd.service", "qmd.socket", "qmd-service@.service", *shipping, *DOORS):
        text = (DEPLOY / unit).read_text().replace("/usr/local/bin/qmd", "/bin/true")
        (tmp_path / unit).write_text(text)

    (tmp_path / "qmd-service@.service").rename(tmp_path / "qmd-service@orders.service")
    units = sorted(tmp_path.glob("qmd*"))
    result = analyze("verify", "--man=no", *units)

    assert len(units) == 13
    complaints = [line for line in result.stderr.splitlines() if "qmd" in line]
    assert result.returncode == 0, result.stderr
    assert not complaints


def test_only_wrong_usage_or_configuration_prevents_a_restart():
    unit = settings("qmd.service")

    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"].split() == [
        str(int(code)) for code in (ExitCode.USAGE, ExitCode.CONFIGURATION)
    ]
    assert unit["StartLimitIntervalSec"] == "0"


def test_the_memory_of_the_service_is_throttled_before_its_limit():
    gibibytes = {}
    for name in ("MemoryHigh", "MemoryMax"):
        amount = re.fullmatch(r"([1-9][0-9]*)G", settings("qmd.service")[name])
        assert amount is not None, name
        gibibytes[name] = int(amount[1])

    assert gibibytes["MemoryHigh"] < gibibytes["MemoryMax"]


def test_no_body_of_a_message_reaches_a_core_file_or_another_user():
    unit = settings("qmd.service")

    assert unit.get("LimitCORE") == "1"
    assert unit["WatchdogSignal"] == "SIGKILL"
    assert (unit["User"], unit["StateDirectoryMode"], unit["UMask"]) == ("qmd", "0700", "0077")
    assert re.search(r"^d /var/lib/qmd 0700 qmd qmd", (DEPLOY / "qmd.tmpfiles").read_text(), re.M)


@needs_systemd_analyze
def test_a_drop_in_with_credentials_is_understood_and_keeps_the_sandbox(tmp_path):
    """The lines of deploy/README.md, with files that exist."""
    lines = re.findall(r"^ +(LoadCredential\w*=.*)$", (DEPLOY / "README.md").read_text(), re.M)
    unit = (DEPLOY / "qmd.service").read_text().replace("/usr/local/bin/qmd", "/bin/true")
    unit = unit.replace("\n[Install]", "\n" + "\n".join(lines) + "\n\n[Install]")
    (tmp_path / "qmd.service").write_text(unit)

    verified = analyze("verify", "--man=no", tmp_path / "qmd.service")
    rated = analyze("security", "--offline=true", tmp_path / "qmd.service")

    assert len(lines) == 2
    assert not [line for line in verified.stderr.splitlines() if "redential" in line]
    rating = re.search(r"exposure level for qmd\.service: ([0-9.]+)", rated.stdout)
    assert rating is not None, rated.stderr
    assert float(rating[1]) <= EXPOSURE_MAX


def test_the_example_configuration_is_the_default_one_in_the_folders_of_the_service(tmp_path):
    text = write_default_config(tmp_path, listen="127.0.0.1:1801", name="").read_text()
    text = text.replace('\ndata = "data"\n', '\ndata = "/var/lib/qmd"\n')
    text = text.replace('\nsocket = "qmd.sock"\n', '\nsocket = "/run/qmd/qmd.sock"\n')
    for default, place in STATES.items():
        line = f'\n# {default}"\n'
        assert text.count(line) == 1
        key = default.partition(" = ")[0]
        text = text.replace(line, f'\n{key} = "{place}"\n')

    assert (DEPLOY / "qmd.toml").read_text() == text


@pytest.mark.parametrize("example", ["qmd.toml", "compose.toml"])
def test_an_example_configuration_keeps_everything_where_the_service_may_write(example):
    settings = load_settings(DEPLOY / example, environment={})

    assert settings.queue_manager.data == Path("/var/lib/qmd")
    assert settings.control.socket == Path("/run/qmd/qmd.sock")
    assert not settings.queue_manager.run_as_root
    assert settings.listen.port == 1801


def test_every_service_writes_its_files_in_its_state_folder():
    tmpfiles = (DEPLOY / "qmd.tmpfiles").read_text()

    for place in STATES.values():
        folder = Path(place).parent
        unit = settings(f"{folder.name}.service")
        assert unit["StateDirectory"] == folder.name
        # Commands of root write there before the service starts for the first time.
        line = rf"^d {folder} +{unit['StateDirectoryMode']} +{unit['User']} +{unit['Group']} "
        assert re.search(line, tmpfiles, re.MULTILINE), place


def test_the_installed_service_accepts_no_remote_connections():
    settings = load_settings(DEPLOY / "qmd.toml", environment={})

    assert settings.listen.address == "127.0.0.1"
    assert all(network.is_loopback for network in settings.peers.allow)


def test_the_hosts_of_the_compose_file_accept_only_connections_of_each_other():
    settings = load_settings(DEPLOY / "compose.toml", environment={})
    subnet = re.search(r"subnet: (\S+)", (DEPLOY / "compose.yaml").read_text())

    others = [str(network) for network in settings.peers.allow if not network.is_loopback]

    assert subnet is not None
    assert others == [subnet[1]]


def test_every_unit_of_the_daemon_is_installed_and_known_to_the_packages():
    """Those of Spark need an environment of their own: they are installed by hand."""
    of_spark = ("qmd-audit", "qmd-ship", "qmd-watch")
    units = {
        unit.name
        for unit in (*DEPLOY.glob("*.service"), *DEPLOY.glob("*.socket"))
        if not unit.name.startswith(of_spark)
    }
    rules = (DEPLOY.parent / "debian" / "rules").read_text()
    installer = (DEPLOY / "install.py").read_text()

    assert {unit for unit in units if f'"{unit}"' not in installer} == set()
    assert {unit for unit in units if "@" not in unit and unit not in rules} == set()


def test_the_documentation_of_a_unit_is_a_page_that_exists():
    names = {f"{name}(1)" for name in commands.names()} | {"qmd.toml(5)"}
    for unit in DEPLOY.glob("qmd*.service"):
        for line in re.findall(r"^Documentation=(.*)$", unit.read_text(), re.MULTILINE):
            assert {page.removeprefix("man:") for page in line.split()} <= names, unit
