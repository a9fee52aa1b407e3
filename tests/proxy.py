"""A TCP proxy between a client and the broker, which tests let fail in chosen ways."""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forward connections to ``port`` on 127.0.0.1 until told otherwise; use it as a context.

    `stall()` keeps connections open and forwards nothing, as a dead route does; `cut()` resets
    them; `refuse()` cuts and takes no new ones; `resume()` ends a stall and a refusal. What was
    sent during a stall arrives after it. ``accepted`` counts connections.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._lock = threading.RLock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._stalled = self._refusing = self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.refuse()
        self._closed = True
        self._thread.join(5)
        self._selector.close()

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        with self._lock:
            return len(self._pairs) // 2

    def stall(self) -> None:
        """Forward nothing in either direction."""
        with self._lock:
            self._stalled = True

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        with self._lock:
            for end in list(self._pairs):
                self._drop(end)

    def refuse(self) -> None:
        """Cut, and refuse new connections."""
        with self._lock:
            self._refusing = True
            if self._listener.fileno() != -1:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(self._listener)
                self._listener.close()
            self.cut()

    def resume(self) -> None:
        """Forward again, and take connections again."""
        with self._lock:
            self._stalled = False
            if self._refusing:
                self._refusing = False
                self._listener = socket.create_server(("127.0.0.1", self.port))
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _serve(self) -> None:
        while not self._closed:
            if self._stalled:
                threading.Event().wait(0.02)
                continue
            for key, _ in self._selector.select(timeout=0.02):
                with self._lock:
                    if self._stalled or key.fileobj.fileno() == -1:  # type: ignore[union-attr]
                        continue
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.accepted += 1
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        for end, other in ((client, server), (server, client)):
            end.settimeout(10)
            self._pairs[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
            if data:
                self._pairs[end].sendall(data)
                return
        except (OSError, KeyError):
            pass
        self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        other = self._pairs.pop(end, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        for item in (end, other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(item)
            with contextlib.suppress(OSError):
                # A reset, as a broken path gives, and no orderly end.
                item.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            item.close()
