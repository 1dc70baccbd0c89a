"""Configuration file: parsed strictly, overridden by the environment, written by `qmd init`.

    load_settings(path)        TOML, then QMD_<SECTION>_<KEY> from the environment
    write_default_config(...)  the initial file of a new queue manager
    reference()                the manual's tables

Nothing is guessed: an unknown section or key, a wrong type, unit or range is a ConfigError that
names the file, the line, the value found and the allowed values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from qmd.config.settings import SECTIONS, Setting, Settings, settings_of

__all__ = [
    "CONFIG_NAME",
    "ConfigError",
    "Effective",
    "Settings",
    "load_settings",
    "parse_settings",
    "read_effective",
    "reference",
    "write_default_config",
]

CONFIG_NAME = "qmd.toml"
FILE_BYTES_MAX = 64 * 1024
_TEXT = "utf-8-sig"  # editors of Windows begin a file with the mark
# Limit for the search of an error's line, which parses parts again: some 50 ms.
SEARCH_CHARACTERS_MAX = 1_000_000
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7) has 108, one of them for the null

# (section, key, key that must not be smaller)
_ORDERED = (
    ("peers", "sessions_per_peer_max", "sessions_max"),
    ("delivery", "retry_first", "retry_max"),
    ("delivery", "order_ack_timeout", "order_ack_delay_max"),
)


# Errors of tomllib: a TOMLDecodeError is a ValueError, and so is a number of too many digits.
_UNREADABLE = (ValueError, RecursionError)


class ConfigError(Exception):
    """The configuration cannot be used; `str()` is one line for its author.

    `code` identifies the cause (`qmd.catalogue`). `file` and `line` are the place, and None for the
    environment and for arguments; `key` is "[section] key", or "" if the error has no key. `others`
    are the further errors of the same configuration.
    """

    others: tuple[ConfigError, ...] = ()

    def __init__(
        self,
        problem: str,
        *,
        code: str,
        key: str = "",
        file: Path | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.code = code
        self.key = key
        self.file = file
        self.line = line

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (where, self.key, self.problem) if part)
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read `path`, with overrides from `environment` (default: the process's).

    Raises ConfigError.
    """
    file = path.absolute()
    return parse_settings(_text_of(file), file=file, environment=environment)


def _text_of(file: Path) -> str:
    """Return the text of a file.  Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            error.strerror or str(error), code="config_unreadable", file=file
        ) from error
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"longer than {FILE_BYTES_MAX} bytes", code="config_too_long", file=file)
    try:
        return raw.decode(_TEXT)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(_not_utf8(raw), code="config_not_utf8", file=file, line=line) from error


def _not_utf8(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text: save it as UTF-8"
    return "not UTF-8 text"


def parse_settings(
    text: str, *, file: Path, environment: Mapping[str, str] | None = None
) -> Settings:
    """Parse a text as `load_settings` does; `file` is its current or future location.

    Raises ConfigError.
    """
    source = _Source(text, file)
    found = _Errors()
    for section, table in source.document.items():
        _check_names(source, section, table, found)
    overrides = _overrides(os.environ if environment is None else environment, found)
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for section, attributes in values.items():
        for setting in settings_of(section).values():
            with found.collected():
                attributes[setting.attribute] = _value(setting, source, overrides)
    found.raise_if_any()
    settings = Settings(**{section: SECTIONS[section](**values[section]) for section in SECTIONS})
    for check in (_check_order, _check_directory, _check_socket):
        with found.collected():
            check(settings, source)
    found.raise_if_any()
    return settings


class Effective(NamedTuple):
    """One key with its value in the syntax of TOML, and where the value comes from."""

    section: str
    key: str
    value: str
    default: str
    source: str  # "default", "FILE:LINE" or "environment NAME"

    @property
    def is_default(self) -> bool:
        return self.source == "default"


def read_effective(path: Path, environment: Mapping[str, str] | None = None) -> list[Effective]:
    """Return every key with its value and its source.  Raises ConfigError."""
    settings = load_settings(path, environment)  # reports all errors
    assert settings
    file = path.absolute()
    source = _Source(_text_of(file), file)
    overrides = _overrides(os.environ if environment is None else environment, _Errors())
    found = []
    for section in SECTIONS:
        table = source.document.get(section, {})
        for key, setting in settings_of(section).items():
            if (section, key) in overrides:
                value: object = overrides[section, key]
                origin = f"environment {variable_of(section, key)}"
            elif key in table:
                value, origin = table[key], f"{file}:{source.line(section, key)}"
            else:
                value, origin = setting.default, "default"
            found.append(
                Effective(section, key, toml_value(value), toml_value(setting.default), origin)
            )
    return found


class _Errors:
    """The errors of one configuration: all of them are reported, not the first one only."""

    def __init__(self) -> None:
        self._errors: list[ConfigError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self._errors.append(error)

    def raise_if_any(self) -> None:
        if self._errors:
            first, *others = sorted(self._errors, key=lambda error: error.line or 0)
            first.others = tuple(others)
            raise first


class _Source:
    """A TOML text with the line of each key."""

    def __init__(self, text: str, file: Path) -> None:
        import tomllib  # imported here, because `--help` of the command line does not need it

        self._parse = tomllib.loads
        # TOML has no other line ends, but str.splitlines has.
        self._lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
        self.file = file
        try:
            self.document: dict[str, Any] = self._parse(text)
        except _UNREADABLE as error:
            problem, line = _split_line(str(error), len(self._lines))
            raise ConfigError(problem, code="config_syntax", file=file, line=line) from error

    def error(
        self, problem: str, section: str, key: str | None = None, *, code: str
    ) -> ConfigError:
        name = f"[{section}]" if key is None else f"[{section}] {key}"
        return ConfigError(
            problem, code=code, key=name, file=self.file, line=self.line(section, key)
        )

    def line(self, section: str, key: str | None) -> int | None:
        """Return the line on which `key`, or else `section`, first appears; None if it does not.

        tomllib keeps no positions. For each line that contains the word, this method parses the
        text up to that line (or up to the end of its value); the first line for which the result
        contains the key is the answer. The search is given up when it takes too long.
        """
        word = key or section
        characters_left = SEARCH_CHARACTERS_MAX
        for start, line in enumerate(self._lines):
            if word not in line or line.lstrip().startswith("#"):
                continue
            for end in range(start + 1, len(self._lines) + 1):  # a value may span lines
                text = "".join(self._lines[:end])
                characters_left -= len(text)
                if characters_left < 0:
                    return None
                try:
                    document = self._parse(text)
                except _UNREADABLE:
                    continue
                if _contains(document, section, key):
                    return start + 1
                break
        return None


def _contains(document: Mapping[str, Any], section: str, key: str | None) -> bool:
    table = document.get(section)
    return table is not None and (key is None or (isinstance(table, dict) and key in table))


def _split_line(message: str, lines: int) -> tuple[str, int | None]:
    """Split "problem (at line 3, column 5)"; "(at end of document)" is the last line."""
    problem, _, place = message.rpartition(" (at ")
    if not problem:
        return message, None
    line = place.removeprefix("line ").partition(",")[0]
    return problem, int(line) if line.isdigit() else lines


def _check_names(source: _Source, section: str, table: object, found: _Errors) -> None:
    with found.collected():
        _check_section(source, section, table)
        assert isinstance(table, dict)
        for key in table:
            with found.collected():
                if unknown := _unknown(section, key):
                    raise source.error(unknown, section, key, code="config_unknown_key")


def _check_section(source: _Source, section: str, table: object) -> None:
    owner = None if isinstance(table, dict) else _owner(section)
    if owner:
        raise source.error(
            f"{section} is a key of [{owner}], and is outside of it",
            section,
            code="config_unknown_section",
        )
    if section not in SECTIONS:
        raise source.error(
            f"unknown section; did you mean [{_nearest(section, SECTIONS)}]?",
            section,
            code="config_unknown_section",
        )
    if not isinstance(table, dict):
        raise source.error(
            f"found {table!r}; a section [{section}] is required", section, code="config_bad_value"
        )


def _unknown(section: str, key: str) -> str | None:
    known = settings_of(section)
    if key in known:
        return None
    owner = _owner(key)
    if owner:
        return f"unknown key here; it belongs to [{owner}]"
    return f"unknown key; did you mean {_nearest(key, known)}?"


def _owner(key: str) -> str | None:
    return next((section for section in SECTIONS if key in settings_of(section)), None)


def _nearest(word: str, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    return get_close_matches(word, known, n=1, cutoff=0.0)[0]


def _overrides(environment: Mapping[str, str], errors: _Errors) -> dict[tuple[str, str], str]:
    """Return the values of QMD_<SECTION>_<KEY>, by section and key."""
    found = {}
    for variable, text in environment.items():
        for section in SECTIONS:
            prefix = variable_of(section, "")
            if variable.startswith(prefix):
                key = variable.removeprefix(prefix).lower()
                with errors.collected():
                    if problem := _unknown(section, key):
                        name = f"environment variable {variable}"
                        raise ConfigError(problem, code="config_unknown_key", key=name)
                    found[section, key] = text
    return found


def variable_of(section: str, key: str) -> str:
    """Return the variable of the environment that overrides a key."""
    return f"QMD_{section}_{key}".upper()


def _value(setting: Setting, source: _Source, overrides: Mapping[tuple[str, str], str]) -> object:
    override = overrides.get((setting.section, setting.key))
    if override is not None:
        found = setting.kind.from_environment(override)
    else:
        table = source.document.get(setting.section, {})
        # A section that is not a table was reported before.
        found = table.get(setting.key, setting.default) if isinstance(table, dict) else None
        if found is None:
            return setting.default
    try:
        value = setting.kind.parse(found)
    except ValueError as error:
        detail = f" ({error})" if str(error) else ""
        problem = f"found {toml_value(found)[:80]}; allowed is {setting.kind.allowed}{detail}"
        if override is not None:
            variable = variable_of(setting.section, setting.key)
            raise ConfigError(
                problem, code="config_bad_value", key=f"environment variable {variable}"
            ) from error
        raise source.error(
            problem, setting.section, setting.key, code="config_bad_value"
        ) from error
    if isinstance(value, tuple) and value and isinstance(value[0], Path):
        return tuple(source.file.parent / each for each in value)
    return source.file.parent / value if isinstance(value, Path) else value


def _check_order(settings: Settings, source: _Source) -> None:
    for section, low, high in _ORDERED:
        known = settings_of(section)
        values = getattr(settings, section)
        if getattr(values, known[low].attribute) > getattr(values, known[high].attribute):
            table = source.document.get(section, {})
            at_fault = low if low in table else high
            raise source.error(
                f"{low} is greater than {high}", section, at_fault, code="config_conflict"
            )


def _check_directory(settings: Settings, source: _Source) -> None:
    directory = settings.directory
    if directory.kind == "active-directory":
        missing = {
            "servers": not directory.servers,
            "user": directory.bind == "simple" and not directory.user,
            "certificate": directory.bind == "external" and directory.certificate is None,
        }
        for key, is_missing in missing.items():
            if is_missing:
                problem = f"kind active-directory with bind {directory.bind} needs {key}"
                raise source.error(problem, "directory", "kind", code="config_conflict")


def _check_socket(settings: Settings, source: _Source) -> None:
    size = len(os.fsencode(settings.control.socket))
    if size > SOCKET_PATH_BYTES_MAX:
        problem = (
            f"{settings.control.socket} has {size} bytes, and the path of a Unix socket at most "
            f"{SOCKET_PATH_BYTES_MAX}; give a shorter one, for example /run/qmd/qmd.sock"
        )
        raise source.error(problem, "control", "socket", code="socket_path_too_long")


def write_default_config(
    folder: Path, *, listen: str, name: str, run_as_root: bool = False
) -> Path:
    """Write `folder`/qmd.toml for a queue manager that keeps everything in `folder`.

    `listen` is address:port, with an IPv6 address in brackets; an empty `name` means the name of
    the host; `run_as_root` is for a folder owned by root. A new folder gets mode 0700, the file
    0640. Raises ConfigError; an existing file is never changed.
    """
    address, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise ConfigError(
            f"found {listen!r}; address:port is required", code="bad_listen", key="listen"
        )
    given: dict[tuple[str, str], object] = {
        ("queue_manager", "data"): "data",
        ("listen", "address"): address.removeprefix("[").removesuffix("]"),
        ("listen", "port"): int(port),
        ("control", "socket"): "qmd.sock",
    }
    if name:
        given["queue_manager", "name"] = name
    if run_as_root:
        given["queue_manager", "run_as_root"] = True
    file = folder.absolute() / CONFIG_NAME
    text = _default_text(given)
    try:
        parse_settings(text, file=file, environment={})
    except ConfigError as error:  # the file does not exist yet, so omit its line
        raise ConfigError(error.problem, code=error.code, key=error.key) from error
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    except OSError as error:
        raise ConfigError(
            f"not written: {error.strerror}", code="config_not_written", file=file
        ) from error
    with open(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o640)  # independent of the umask
        stream.write(text)
    return file


def _default_text(given: Mapping[tuple[str, str], object]) -> str:
    """Return a configuration file with `given` values; other keys are comments with defaults."""
    lines = [
        "# Configuration of a qmd queue manager. A key in a comment has its default.",
        "# Durations have a unit (500ms, 30s, 5m, 12h, 4d), sizes too (64KiB, 500MB, 8GB).",
        "# Every key can be overridden by an environment variable QMD_<SECTION>_<KEY>.",
    ]
    for section, declaration in SECTIONS.items():
        lines += ["", "", f"# {declaration.__doc__}", f"[{section}]"]
        for key, setting in settings_of(section).items():
            value = given.get((section, key))
            comment = "# " if value is None else ""
            lines += [
                "",
                f"# {setting.meaning}",
                f"# Allowed: {setting.kind.allowed}",
                f"{comment}{key} = {toml_value(setting.default if value is None else value)}",
            ]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Return the tables of all settings, in Markdown."""
    lines = []
    for section, declaration in SECTIONS.items():
        lines += [f"## [{section}]", "", f"{declaration.__doc__}", ""]
        lines += ["| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{key}` | `{toml_value(setting.default)}` | {setting.kind.allowed} "
            f"| {setting.meaning} |"
            for key, setting in settings_of(section).items()
        ]
        lines += [""]
    return "\n".join(lines)


def toml_value(value: object) -> str:
    """Return a value in TOML syntax, or in Python's if TOML has none for it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{"".join(map(_toml_character, value))}"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else hex(value)  # Python's own limit is 4300
    return repr(value)


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
