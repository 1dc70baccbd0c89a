"""The stub of `qmd.client.blocking` for type checkers, generated from the asynchronous client.

    python -m tests.unit.client.blocking_types     # rewrites qmd/client/blocking.pyi

No signature is written twice by hand: each is read from the source of the asynchronous class, and
its `async` is removed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILE = ROOT / "qmd/client/blocking.pyi"
#: The classes with a blocking version, by their module in `qmd.client`.
FACED = {
    "queue_manager": ["QueueManager"],
    "transaction": ["Transaction"],
    "sender": ["Sender"],
    "receiver": ["Taken"],
    "locked": ["Locked"],
    "queue": ["Queue", "Cursor"],
    "directory": ["Directory"],
    "access": ["AccessControl"],
    "topics": ["Topics"],
    "pipeline": ["Pipeline"],
}
#: The base class with further methods of a class, by its module in `qmd.client`.
BASES = {"QueueManager": ("administration", "Administration")}
WITHOUT_AWAIT = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__len__": "__len__",
}
HEAD = '''"""`qmd.client` without `await`.  Written by tests/unit/client/blocking_types.py."""

'''
TAIL = """
Blocking = QueueManager

class LoopThread:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def run(self, work: Coroutine[Any, Any, T]) -> T: ...
    def follow(self, future: asyncio.Future[T]) -> concurrent.futures.Future[T]: ...

def facing(queue_manager: AwaitedQueueManager) -> QueueManager: ...
"""


class _Annotations(ast.NodeTransformer):
    """Replace each awaitable type by the type of its result."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name({"AsyncIterator": "Iterator"}.get(node.id, node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if ast.unparse(node) == "asyncio.Future":
            return ast.parse("concurrent.futures.Future", mode="eval").body
        return node


def stub() -> str:
    imports: dict[str, str] = {}  # the statement for each name
    classes: list[str] = []
    for module, names in FACED.items():
        tree = ast.parse((ROOT / "qmd/client" / f"{module}.py").read_text())
        imports = _imports(module, tree) | imports
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                if node.name in BASES:
                    base, base_imports = _base(*BASES[node.name])
                    node.body += base
                    imports = base_imports | imports
                classes.append(_class(node))
            elif isinstance(node, ast.FunctionDef) and node.name == "connect":
                classes.append(_function(node, ""))
    text = "\n".join(classes) + TAIL
    faced = {name for names in FACED.values() for name in names}
    imports |= {
        "Iterator": "from collections.abc import Iterator",
        "Coroutine": "from collections.abc import Coroutine",
        "concurrent": "import concurrent.futures",
        "TypeVar": "from typing import TypeVar",
        "AwaitedQueueManager": (
            "from qmd.client.queue_manager import QueueManager as AwaitedQueueManager"
        ),
    }
    used = {each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)}
    needed = {imports[name] for name in (used | {"TypeVar"}) - faced if name in imports}
    return f'{HEAD}{chr(10).join(sorted(needed))}\n\nT = TypeVar("T")\n\n{text}'


def _imports(module: str, tree: ast.Module) -> dict[str, str]:
    """Return the statement that imports each name which annotations of the module may use.

    These are the names that the module imports, and those that it defines.
    """
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for each in node.names:
                spelled = f"{each.name} as {each.asname}" if each.asname else each.name
                found[each.asname or each.name] = f"from {node.module} import {spelled}"
        elif isinstance(node, ast.Import):
            found |= {each.name.split(".")[0]: f"import {each.name}" for each in node.names}
    for top in tree.body:
        names = [top.name] if isinstance(top, ast.ClassDef) else []
        if isinstance(top, ast.Assign):
            names = [target.id for target in top.targets if isinstance(target, ast.Name)]
        found |= {name: f"from qmd.client.{module} import {name}" for name in names}
    return found


def _base(module: str, name: str) -> tuple[list[ast.stmt], dict[str, str]]:
    """Return the methods of a base class and the imports that its annotations use."""
    tree = ast.parse((ROOT / "qmd/client" / f"{module}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [each for each in node.body if _is_method(each)], _imports(module, tree)
    raise LookupError(f"{module} has no class {name}")


def _is_method(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__"


def _class(node: ast.ClassDef) -> str:
    lines = [f"class {node.name}:"]
    for each in node.body:
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if each.name == "__init__":
            lines += _attributes(each)
        elif not each.name.startswith("_") or each.name in WITHOUT_AWAIT:
            lines.append(_function(each, "    "))
    return "\n".join(lines) + "\n"


def _attributes(init: ast.FunctionDef) -> list[str]:
    """Return the stub lines of the public attributes.

    The type of each is its annotation, that of an argument, or a class with a blocking version.
    """
    given = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
    found = []
    for node in init.body:
        if isinstance(node, ast.AnnAssign):
            target, kind = node.target, node.annotation
        elif isinstance(node, ast.Assign):
            value = node.value
            name = ast.unparse(value.func if isinstance(value, ast.Call) else value)
            target, kind = node.targets[0], given.get(name) or ast.Name(name)
        else:
            continue
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            found.append(f"    {target.attr}: {_annotation(kind)}")
    return found


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> str:
    name = WITHOUT_AWAIT.get(node.name, node.name)
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.annotation is not None:
            each.annotation = _Annotations().visit(each.annotation)
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [each and ast.Constant(...) for each in arguments.kw_defaults]
    assert node.returns is not None
    lines = [f"{indent}@{ast.unparse(each)}" for each in node.decorator_list]
    head = f"def {name}({ast.unparse(arguments)}) -> {_annotation(node.returns)}: ..."
    return "\n".join([*lines, indent + head])


def _annotation(node: ast.expr) -> str:
    return ast.unparse(_Annotations().visit(node))


if __name__ == "__main__":
    FILE.write_text(stub())
    for order in (["format", "--quiet"], ["check", "--quiet", "--fix"]):
        subprocess.run([sys.executable, "-m", "ruff", *order, str(FILE)], check=True)
