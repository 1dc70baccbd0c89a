"""A daemon whose configuration uses no TLS does not load OpenSSL; the rest of Python works."""

import hashlib
import hmac
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qmd.config.settings import Settings
from qmd.runtime import lean_imports

LOAD = "from qmd.runtime import lean_imports; lean_imports.load(tls={tls})\n"
OPENSSL = "any('libcrypto' in line for line in open('/proc/self/maps'))"


def run(program: str, *, tls: bool = False) -> str:
    """Return the output of a program that has loaded the libraries of a daemon."""
    ran = subprocess.run(
        (sys.executable, "-c", LOAD.format(tls=tls) + program),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("tls", [True, False])
def test_openssl_is_loaded_with_tls_only(tls: bool) -> None:
    program = f"import asyncio, hashlib, msgspec, uvloop; print({OPENSSL})"
    assert run(program, tls=tls) == str(tls)


def test_hash_functions_have_the_same_results() -> None:
    program = """
import hashlib, hmac
for name in ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b"):
    print(getattr(hashlib, name)(b"text").hexdigest(), hashlib.new(name, b"text").hexdigest())
print(hmac.new(b"key", b"text", "sha256").hexdigest())
print(hmac.compare_digest(b"a", b"a"), hmac.compare_digest(b"a", b"b"))
"""
    names = ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b")
    digests = [hashlib.new(name, b"text").hexdigest() for name in names]
    expected = [f"{digest} {digest}" for digest in digests]
    expected += [hmac.new(b"key", b"text", "sha256").hexdigest(), "True False"]
    assert run(program).splitlines() == expected


def test_an_event_loop_serves_connections() -> None:
    program = """
import asyncio, uvloop

async def echo(reader, writer):
    writer.write(await reader.readline())
    writer.close()

async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"text\\n")
        print((await reader.readline()).decode())
        writer.close()

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""
    assert run(program) == "text"


def test_tls_can_be_imported_afterwards() -> None:
    program = f"import ssl, typing_extensions; ssl.create_default_context(); print({OPENSSL})"
    assert run(program) == "True"


def test_asyncio_without_tls_refuses_a_context() -> None:
    """It must not connect without TLS instead."""
    program = """
import asyncio, ssl, uvloop

async def main():
    await asyncio.open_connection("127.0.0.1", 9, ssl=ssl.create_default_context())

try:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
except RuntimeError as error:
    print(error)
"""
    assert run(program) == "this process has loaded its libraries without the module ssl"


def test_libraries_that_are_imported_already_stay() -> None:
    assert run("import ssl\nlean_imports.load(tls=False)\nprint(ssl.SSLContext.__name__)") == (
        "SSLContext"
    )


def test_the_settings_that_need_tls() -> None:
    plain = Settings()
    assert not lean_imports.needs_tls(plain)
    assert lean_imports.needs_tls(replace(plain, remote=replace(plain.remote, enabled=True)))
    domain = replace(plain.directory, kind="active-directory")
    assert lean_imports.needs_tls(replace(plain, directory=domain))


def test_modules_for_rare_cases_are_loaded_when_they_are_used() -> None:
    program = """
import inspect, subprocess, sys, tokenize, uuid
before = {"ast", "decimal", "locale", "platform"} & set(sys.modules)
print(*before, inspect.signature(len), uuid.uuid1().version, subprocess.getoutput("echo text"))

class Example:
    pass

try:
    inspect.getsource(Example)
except OSError as error:
    print(error)
"""
    load_first = "from qmd.runtime.lean_imports import load_dataclasses; load_dataclasses()\n"
    ran = subprocess.run(
        (sys.executable, "-c", load_first + LOAD.format(tls=False) + program),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["(obj, /) 1 text", "source code not available"]


def test_source_of_classes_is_found(tmp_path: Path) -> None:
    """inspect's visitor of nodes has the methods of `ast.NodeVisitor`."""
    (tmp_path / "example.py").write_text("class Example:\n    size = 3\n")
    program = f"""
import sys
from qmd.runtime import lean_imports
lean_imports.load_dataclasses()
import inspect
assert "ast" not in sys.modules
sys.path.insert(0, {str(tmp_path)!r})
import example
print(inspect.getsource(example.Example))
"""
    ran = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout.split() == ["class", "Example:", "size", "=", "3"], ran.stderr


def test_numbers_are_no_decimal_numbers_for_msgspec() -> None:
    program = """
import decimal, msgspec
print(msgspec.json.encode(decimal.Decimal("1.5"), enc_hook=str).decode())
"""
    assert run(program) == '"1.5"'
