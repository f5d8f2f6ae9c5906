"""HTTP endpoint for Prometheus metrics: `http://HOST:PORT/metrics`.

Knows: HTTP, the newest event of each kind of a run. Does not know: which metrics exist, when events come.

It only answers `GET /metrics`, with numbers and names of processes: no samples, weights or paths. Anyone who
can reach the port can read it; by default only this machine can.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from cotswold.errors import UserError
from cotswold.run.prometheus.exposition import CONTENT_TYPE, MetricFamily, exposition
from cotswold.run.prometheus.run_metrics import families

PATH = "/metrics"
_TIMEOUT_SECONDS = 5.0


class PrometheusServer:
    """An HTTP server in a background thread; it calls ``families`` for each request."""

    def __init__(self, host: str, port: int, families: Callable[[], Iterable[MetricFamily]]) -> None:
        """Start to listen; port 0 is any free one. Raises UserError if the address cannot be used."""
        self._families = families
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise UserError(
                f"metrics cannot be served at {_place(host, port)} ({error.strerror or error}); "
                "if another run or pool uses the port, choose a different one: --metrics PORT"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the metrics."""
        host, port = self._server.server_address[:2]
        return f"http://{_place(str(host), port)}{PATH}"

    @property
    def text(self) -> str:
        """Text of all current metrics."""
        return exposition(self._families())

    def close(self) -> None:
        """Stop the server; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class PrometheusObserver(PrometheusServer):
    """An observer of an EventLog, and the server that exports its newest events."""

    name = "metrics"

    def __init__(self, host: str, port: int, about: Mapping[str, str]) -> None:
        """Start to listen as `PrometheusServer` does; ``about``: labels of the run."""
        self._newest: dict[str, Mapping[str, object]] = {}
        self._counts: dict[str, int] = {}
        super().__init__(host, port, lambda: families(dict(self._newest), dict(self._counts), about))

    def write(self, event: Mapping[str, object]) -> None:
        """Save an event as the newest of its kind."""
        kind = str(event["kind"])
        self._newest[kind] = event
        self._counts[kind] = self._counts.get(kind, 0) + 1


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], scraped: PrometheusServer) -> None:
        self.on_scrape = scraped
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_SECONDS
    server_version, sys_version = "cotswold", ""

    def do_GET(self) -> None:  # the name that the base class calls
        """Answer with all metrics."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        body = cast(_Server, self.server).on_scrape.text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Log nothing: the terminal shows the run."""
