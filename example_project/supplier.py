"""A small HTTP supplier who knows what is in stock, and who does not like to be hurried.

    GET /stock?sku=MUG-BLUE&sku=TEA-POT   200  {"MUG-BLUE": 42, "TEA-POT": 17}
                                          429  Retry-After: 1   more than `limit` requests a window

`Supplier` serves from a thread of its own; ``python supplier.py --port 8100`` serves until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit


def stock_level(sku: str) -> int:
    """Return how many of an article there are: always the same for the same SKU."""
    return 10 + zlib.crc32(sku.encode()) % 90


class RateLimit:
    """Admit at most ``limit`` requests in any ``window`` seconds."""

    def __init__(
        self, limit: int, window: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.window = window
        self._clock = clock
        self._lock = threading.Lock()
        self._admitted: deque[float] = deque()

    def seconds_to_wait(self) -> float:
        """Admit a request and return 0, or refuse it and return when to come back."""
        with self._lock:
            now = self._clock()
            while self._admitted and self._admitted[0] <= now - self.window:
                self._admitted.popleft()
            if len(self._admitted) < self.limit:
                self._admitted.append(now)
                return 0.0
            return self._admitted[0] + self.window - now


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        wait = self.server.rate_limit.seconds_to_wait()
        if wait > 0:
            # Retry-After knows whole seconds only, so round up.
            self._reply(429, {"error": "not so fast"}, {"Retry-After": str(math.ceil(wait))})
            return
        url = urlsplit(self.path)
        if url.path != "/stock":
            self._reply(404, {"error": "unknown address"})
            return
        self._reply(200, {sku: stock_level(sku) for sku in parse_qs(url.query).get("sku", [])})

    def _reply(
        self, status: int, body: Mapping[str, str | int], headers: Mapping[str, str] | None = None
    ) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        if self.server.log_requests:
            super().log_message(format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, rate_limit: RateLimit, *, log_requests: bool) -> None:
        self.rate_limit = rate_limit
        self.log_requests = log_requests
        super().__init__(("127.0.0.1", port), _Handler)


class Supplier:
    """Serve on a port of 127.0.0.1 (0: any free one) for the length of a ``with`` block."""

    def __init__(
        self, port: int = 0, *, limit: int = 2, window: float = 1.0, log_requests: bool = False
    ) -> None:
        self._server = _Server(port, RateLimit(limit, window), log_requests=log_requests)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="supplier", daemon=True
        )

    @property
    def url(self) -> str:
        """Return the address to send requests to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self) -> None:
        """Wait until the thread that serves ends, which by itself it never does."""
        self._thread.join()


def main() -> None:
    """Serve until Ctrl-C, with one line for each request."""
    parser = argparse.ArgumentParser(description="A supplier with a rate limit.")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--limit", type=int, default=2, help="requests in a second")
    options = parser.parse_args()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Supplier(options.port, limit=options.limit, log_requests=True) as supplier,
    ):
        supplier.wait()


if __name__ == "__main__":
    main()
