"""Handlers of the verbs about rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.control_protocol import access as frames

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection


def _show(connection: ControlConnection, request: frames.ShowAccess) -> None:
    access = connection.components.access_administration
    connection.done(request.number, access.show(request.object))


def _change(connection: ControlConnection, request: frames.ChangeAccess) -> None:
    access = connection.components.access_administration
    access.show(request.object)  # before the answer of the directory is out of date
    work = access.change(request.action, request.principal, request.rights, request.object)
    connection.change(request.number, work)


def _set_owner(connection: ControlConnection, request: frames.SetOwner) -> None:
    access = connection.components.access_administration
    access.show(request.object)
    work = access.set_owner(request.object, request.principal, connection.rights)
    connection.change(request.number, work)


def _test(connection: ControlConnection, request: frames.TestAccess) -> None:
    access = connection.components.access_administration
    access.show(request.object)
    work = access.test(request.principal, request.right, request.object, connection.rights)
    connection.look(request.number, work)


def _export(connection: ControlConnection, request: frames.ExportAccess) -> None:
    connection.done(request.number, connection.components.access_administration.export())


def _import(connection: ControlConnection, request: frames.ImportAccess) -> None:
    access = connection.components.access_administration
    work = access.take_in(request.entries, request.owners, replace=request.replace)
    connection.change(request.number, work)


HANDLERS: dict[type, Handler] = {
    frames.ShowAccess: _show,
    frames.ChangeAccess: _change,
    frames.SetOwner: _set_owner,
    frames.TestAccess: _test,
    frames.ExportAccess: _export,
    frames.ImportAccess: _import,
}
