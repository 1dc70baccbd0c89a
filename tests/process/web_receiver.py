"""A web server that receives the messages of pushes."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.patience import END_S


class Call(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A web server that records requests; `statuses` are those of the next answers, then 200."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.statuses: list[int] = []
        self.location = "http://127.0.0.1:1/"
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = receiver._record(Call(self.path, headers, body))
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", receiver.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _record(self, call: Call) -> int:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
            return self.statuses.pop(0) if self.statuses else 200

    def wait_for(self, count: int) -> list[Call]:
        """Return the calls when there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, END_S), self.calls
            return list(self.calls)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
