"""Connect inherited listening sockets to ports of a network namespace, and run a command there.

python3 -I into_namespace.py DESCRIPTOR:PORT,... COMMAND...

"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(descriptor: int, port: int) -> None:
    listener = socket.socket(fileno=descriptor)
    while True:
        outer, _ = listener.accept()
        try:
            inner = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            outer.close()
            continue
        inner.settimeout(None)
        for source, sink in ((outer, inner), (inner, outer)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()


subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
for pair in sys.argv[1].split(","):
    descriptor, port = map(int, pair.split(":"))
    threading.Thread(target=serve, args=(descriptor, port), daemon=True).start()
command = subprocess.Popen(sys.argv[2:], stdin=sys.stdin)
signal.signal(signal.SIGTERM, lambda *_: command.terminate())
sys.exit(command.wait())
