"""The console over TLS: hosts with tokens by role, HTTPS for browsers, and users with rights."""

from __future__ import annotations

import shutil
import ssl
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.access.tokens import create
from tests.patience import END_S
from tests.process.console_program import Console, ids, page_of
from tests.process.harness import Daemon, free_port
from tests.process.remote_daemon import make_certificates

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


def token(daemon: Daemon, folder: Path, *scopes: str) -> Path:
    """Return a file with a new token of a daemon."""
    file = folder / "-".join(scopes)
    file.write_text(create(daemon.folder / "remote-tokens", file.name, frozenset(scopes), ()))
    return file


def test_a_host_over_tls_gives_each_role_the_rights_of_its_token(tmp_path):
    other, port = Daemon(tmp_path / "other"), free_port()
    other.configure({"remote": {"enabled": True, "port": port}})
    make_certificates(other.folder)
    read, admin = token(other, tmp_path, "read"), token(other, tmp_path, "admin")
    daemon = Daemon(tmp_path / "qmd")
    console = Console(
        daemon,
        hosts=[
            f"local tls://localhost:{port} viewer={read} operator={read} administrator={admin}"
            f" ca={other.folder}/ca.crt",
            f"half tls://localhost:{port} operator={read} ca={other.folder}/ca.crt",
            f"foreign tls://localhost:{port} token={read}",
        ],
    )
    try:
        other.start()
        other.create("orders", "bills")
        other.cli("send", "orders", "x", "--label", "over there")
        console.start()
        vera, otto, anna = map(console.client, ("vera", "otto", "anna"))

        assert "over there" in vera.get(page_of("private$\\orders")).text
        # The role permits it, and the token does not.
        (place,) = ids(otto, "private$\\orders")
        moved = {"queue": "private$\\orders", "target": "private$\\bills", "id": place}
        otto.get("/jobs")
        assert otto.post("/hosts/local/act/move", moved).status == 409
        anna.get("/jobs")
        preview = anna.post("/hosts/local/act/move", moved).text
        assert f"qmd --host localhost:{port} --token-file {admin}" in preview.replace("&#39;", "")
        fleet = vera.get("/").text
        assert "has no token of a viewer" in fleet.replace("the console ", "")
        assert "is not trusted" in fleet
        assert fleet.count("unreachable</span>") == 2
    finally:
        console.kill()
        daemon.kill()
        other.kill()


def test_browsers_reach_it_over_https_with_a_cookie_for_it_alone(tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    make_certificates(daemon.folder)
    console = Console(daemon, certificate="remote.crt", key="remote.key", names=["localhost"])
    context = ssl.create_default_context(cafile=daemon.folder / "ca.crt")
    try:
        console.start()
        base = f"https://localhost:{console.port}"
        form = urllib.request.Request(
            f"{base}/login", b"name=vera&password=correct+horse", {"origin": base}
        )

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: object) -> None:
                return None

        opener = urllib.request.build_opener(Stay, urllib.request.HTTPSHandler(context=context))
        with pytest.raises(urllib.error.HTTPError) as answer:
            opener.open(form, timeout=END_S)
        with answer.value as found:
            assert found.code == 303
            cookie = found.headers["set-cookie"]
        assert cookie.startswith("__Host-qmd-console=")
        assert "Secure" in cookie
        with opener.open(f"{base}/login", timeout=END_S) as page:
            assert "max-age" in page.headers["strict-transport-security"]
    finally:
        console.kill()


def test_a_user_for_which_the_console_acts_has_its_own_rights_only(tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    console = Console(daemon, act_for=True)
    try:
        daemon.start()
        daemon.create("orders")
        daemon.cli("send", "orders", "x", "--label", "secret label")
        console.start()
        anna = console.client("anna")

        assert "secret label" not in anna.get(page_of("private$\\orders")).text
        daemon.cli("acl", "grant", "sasl:anna", "peek,get-properties", "orders")
        assert "secret label" in anna.get(page_of("private$\\orders")).text
        assert "secret label" not in console.client("otto").get(page_of("private$\\orders")).text
    finally:
        console.kill()
        daemon.kill()


def test_it_does_not_listen_beyond_loopback_without_a_certificate(tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    console = Console(daemon, address="0.0.0.0")

    with pytest.raises(AssertionError, match="without TLS"):
        console.start()
