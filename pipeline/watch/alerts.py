"""Alerts: the news of an audit as JSON, for a webhook or a command.

The field `text` is for people, so that the webhooks of chats show it; the other fields are for
programs.  The address of a webhook is often a secret: it comes from a file or the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess  # nosec B404: the command of the operator
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.jobs.small_files import read_small
from pipeline.watch.announced import News, line_of

URL_VARIABLE = "QMD_ALERT_URL"
TRIES = 3
TIMEOUT_S = 20.0
PAUSE_S = 1.0
LINES_MAX = 20  # in `text`
FINDINGS_MAX = 1000  # in `new` and `withdrawn`


class AlertFailed(Exception):
    """An alert was not taken; the text says by which of the receivers, without its address."""


@dataclass(frozen=True, slots=True)
class Alerts:
    """The receivers of alerts."""

    url: str = ""
    command: tuple[str, ...] = ()  # a program and its arguments

    def __bool__(self) -> bool:
        return bool(self.url or self.command)

    def send(self, alert: Mapping[str, Any]) -> None:
        """Give an alert to all receivers.  Raises AlertFailed if one does not take it."""
        body = json.dumps(alert, default=str).encode()
        if self.url:
            _post(self.url, body)
        if self.command:
            _run(self.command, body)


def receivers(url_file: Path | None, command: str) -> Alerts:
    """Return the receivers; the address comes from a file, or from QMD_ALERT_URL.

    `command` is divided into a program and its arguments by the rules of quotes of a shell; no
    shell runs it.  Raises AlertFailed for a file that cannot be read or that holds no address, and
    for a command with an open quote or without such a program.
    """
    url = os.environ.get(URL_VARIABLE, "")
    if url_file is not None:
        try:
            url = read_small(url_file).strip()
        except OSError as error:
            raise AlertFailed(f"{url_file} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise AlertFailed(f"{url_file} cannot be read: {error}") from error
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise AlertFailed(f"{url_file or URL_VARIABLE} holds no address of http or https")
    return Alerts(url, _arguments(command))


def _arguments(command: str) -> tuple[str, ...]:
    try:
        arguments = tuple(shlex.split(command))
    except ValueError as error:
        raise AlertFailed(f"the alert command cannot be divided into words: {error}") from error
    if arguments and shutil.which(arguments[0]) is None:
        raise AlertFailed(
            f"there is no program {arguments[0]} for alerts; the command is a program with its"
            " arguments, and no shell: for pipes and redirections name sh -c '...'"
        )
    return arguments


def alert_of(news: News, counts: Mapping[str, int], report: str) -> dict[str, Any]:
    """Return the alert about the news of a run."""
    head = []
    if news.new:
        head.append(f"{len(news.new)} new finding{'s' * (len(news.new) > 1)}")
    if news.withdrawn:
        head.append(f"{len(news.withdrawn)} withdrawn")
    lines = [f"qmd audit on {socket.gethostname()}: {', '.join(head)}"]
    lines += [f"- {line_of(one)}" for one in news.new[:LINES_MAX]]
    lines += [f"- withdrawn: {line_of(one)}" for one in news.withdrawn[:LINES_MAX]]
    left = max(0, len(news.new) - LINES_MAX) + max(0, len(news.withdrawn) - LINES_MAX)
    lines += [f"- and {left} more"] if left else []
    lines.append(f"see {report}")
    return {
        "text": "\n".join(lines),
        "source": "qmd audit",
        "host": socket.gethostname(),
        "status": "findings" if counts else "well",
        "counts": dict(counts),
        "new": news.new[:FINDINGS_MAX],
        "withdrawn": news.withdrawn[:FINDINGS_MAX],
        "report": report,
    }


def failure_of(text: str, status: int) -> dict[str, Any]:
    """Return the alert about an audit that did not give a result."""
    host = socket.gethostname()
    return {
        "text": f"qmd audit on {host} failed: {text}",
        "source": "qmd audit",
        "host": host,
        "status": "failed",
        "exit_code": status,
    }


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/json", "User-Agent": "qmd"}, method="POST"
    )
    fault = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            # The scheme was checked: http or https.
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # nosec B310
                return
        except urllib.error.HTTPError as error:
            fault = f"it answers {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:  # URLError, timeouts and odd answers
            fault = str(getattr(error, "reason", error))
    raise AlertFailed(f"the webhook at {urlsplit(url).hostname} did not take the alert: {fault}")


def _run(command: tuple[str, ...], body: bytes) -> None:
    try:
        # The operator names the program; nothing of the alert is in its arguments.
        ended = subprocess.run(  # nosec B603
            command, input=body, timeout=10 * TIMEOUT_S, check=False
        )
    except OSError as error:
        raise AlertFailed(f"{command[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise AlertFailed("the alert command did not end") from error
    if ended.returncode:
        raise AlertFailed(f"the alert command ended with exit code {ended.returncode}")
