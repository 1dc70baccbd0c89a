"""`qmd key --own-account` by a ticket of Kerberos, which a real domain controller has issued.

The packages gssapi and krb5 are compiled with the headers of the system: `.ci/run` adds them to
the environment (requirements-kerberos.lock).  Without them, and `kinit`, the test is skipped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qmd.catalogue import id_of
from tests.directory.domain_controller import REALM, DomainController
from tests.directory.hosts import Hosts
from tests.directory.test_message_security import PASSWORD, add_user
from tests.directory.test_own_account import (
    OTHER,
    PACKAGES,
    configured,
    python_for_others,
    registered,
    run,
)
from tests.directory.test_own_account import folder as folder  # the fixture
from tests.patience import END_S
from tests.unit.message_security.secured import certificate
from tests.users import needs_root

MISSING = [each for each in ("gssapi", "krb5") if importlib.util.find_spec(each) is None]
MISSING += [each for each in ("kinit", "samba-tool") if shutil.which(each) is None]
pytestmark = [needs_root, pytest.mark.skipif(bool(MISSING), reason=f"missing: {MISSING}")]


def packages() -> str:
    """Return the folders of the packages, also of those for Kerberos."""
    found = [importlib.util.find_spec(each) for each in ("gssapi", "krb5")]
    folders = [str(Path(each.origin).parents[1]) for each in found if each and each.origin]
    return os.pathsep.join((PACKAGES, *folders))


def name_service(controller: DomainController) -> None:
    """Let the controller have tickets for its address, under which the tests reach it."""
    subprocess.run(
        ["samba-tool", "spn", "add", f"ldap/{controller.address}", "DC1$", "-s",
         str(controller.folder / "smb.conf"), "-H", str(controller.folder / "private/sam.ldb")],
        check=True, capture_output=True,
    )  # fmt: skip


@contextmanager
def ticket(controller: DomainController, folder: Path, user: str) -> Iterator[dict[str, str]]:
    """Yield the environment of a program with a ticket of a user."""
    settings = folder / "krb5.conf"
    settings.write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n"
        " dns_lookup_realm = false\n dns_canonicalize_hostname = false\n rdns = false\n"
        " udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = {controller.address}:88\n }}\n"
        f"[domain_realm]\n {controller.address} = {REALM}\n"
    )
    found = {"KRB5_CONFIG": str(settings), "KRB5CCNAME": f"FILE:{folder}/{user}.ticket"}
    subprocess.run(
        ["kinit", f"{user}@{REALM}"], input=PASSWORD.encode(), check=True, capture_output=True,
        env={"PATH": os.environ["PATH"], **found}, timeout=END_S,
        user=OTHER, group=OTHER, extra_groups=[],
    )  # fmt: skip
    yield found
    Path(f"{folder}/{user}.ticket").unlink()


def test_a_ticket_of_kerberos_changes_the_certificates_of_its_user_alone(
    hosts: Hosts, folder: Path
) -> None:
    controller = hosts.controller
    sid = asyncio.run(add_user(controller, "ivy", registered=[], issued=[], password=PASSWORD))
    other = asyncio.run(add_user(controller, "jim", registered=[], issued=[]))
    name_service(controller)
    file, config = folder / "ivy.crt", configured(hosts, folder)
    file.write_bytes(certificate("ivy"))
    python = python_for_others()
    register = ("--config", str(config), "key", "register")
    own = ("--directory", "--own-account")
    usual = {"HOME": str(folder), "PYTHONPATH": packages()}
    with ticket(controller, folder, "ivy") as mine:
        done = run(python, *register, sid, str(file), *own, **usual, **mine)
        denied = run(python, *register, other, str(file), *own, **usual, **mine)
    without = run(python, *register, sid, str(file), *own, **usual, **mine)
    assert done.returncode == 0, done.stderr
    assert registered(hosts, "ivy") == [certificate("ivy")]
    assert denied.returncode
    assert id_of("directory_denied") in denied.stderr
    assert registered(hosts, "jim") == []
    assert without.returncode
