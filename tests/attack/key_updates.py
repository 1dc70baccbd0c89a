"""A client of TLS 1.3 that asks for new keys again and again: Python's `ssl` has no call for it."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from pathlib import Path

REQUESTED = 1  # SSL_KEY_UPDATE_REQUESTED: the other end must answer
VERIFY_NONE = 0
SET_MIN_PROTO_VERSION = 123
TLS1_3 = 0x0304
FILETYPE_PEM = 1
BUFFER_BYTES = 65_536

_library = ctypes.CDLL(ctypes.util.find_library("ssl"))
_POINTERS = ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem")
for _name in _POINTERS:
    getattr(_library, _name).restype = ctypes.c_void_p


class KeyUpdates:
    """One connection over TLS; it reads only when it is asked to."""

    def __init__(
        self, port: int, *, certificate: Path | None = None, timeout_s: float = 30
    ) -> None:
        """Connect and make the handshake.  `certificate` is a PEM file with its key."""
        library = _library
        context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
        library.SSL_CTX_ctrl(context, SET_MIN_PROTO_VERSION, ctypes.c_long(TLS1_3), None)
        library.SSL_CTX_set_verify(context, VERIFY_NONE, None)
        if certificate is not None:
            name = str(certificate).encode()
            assert library.SSL_CTX_use_certificate_chain_file(context, name) == 1
            assert library.SSL_CTX_use_PrivateKey_file(context, name, FILETYPE_PEM) == 1
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._tls = ctypes.c_void_p(library.SSL_new(context))
        library.SSL_CTX_free(context)
        self._incoming, self._outgoing = (
            ctypes.c_void_p(library.BIO_new(ctypes.c_void_p(library.BIO_s_mem()))) for _ in range(2)
        )
        library.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        while library.SSL_connect(self._tls) != 1:
            self._flush()
            self._receive()
        self._flush()

    def write(self, data: bytes) -> None:
        """Send data.  Raises ConnectionError."""
        assert _library.SSL_write(self._tls, data, len(data)) == len(data)
        self._flush()

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes.  Raises ConnectionError."""
        buffer = ctypes.create_string_buffer(count)
        while (found := _library.SSL_read(self._tls, buffer, count)) <= 0:
            self._receive()
        return buffer.raw[:found]

    def update(self, times: int) -> None:
        """Ask for new keys of both ends, in one write.  Raises OSError."""
        library = _library
        for _ in range(times):
            assert library.SSL_key_update(self._tls, REQUESTED) == 1
            assert library.SSL_do_handshake(self._tls) == 1
        self._flush()

    def _flush(self) -> None:
        buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        while (found := _library.BIO_read(self._outgoing, buffer, BUFFER_BYTES)) > 0:
            self._socket.sendall(buffer.raw[:found])

    def _receive(self) -> None:
        data = self._socket.recv(BUFFER_BYTES)
        if not data:
            raise ConnectionError("the connection has ended")
        _library.BIO_write(self._incoming, data, len(data))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        _library.SSL_free(self._tls)
