"""The endpoint at which Prometheus reads metrics: `http://HOST:PORT/metrics`.

Knows: HTTP, of a run the newest event of each kind. Does not know: which metrics there are, when events come.

It answers `GET /metrics` and nothing else, and tells numbers and names of processes: no sample, no weight, no
path. Whoever reaches the port may read it: that is this machine alone, unless another address is given.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from cotswold.errors import UserError
from cotswold.run.prometheus.exposition import CONTENT_TYPE, Family, exposition
from cotswold.run.prometheus.run_metrics import families

PATH = "/metrics"
_TIMEOUT_SECONDS = 5.0


class Scraping:
    """A server that answers with what ``families`` gives when it is asked, in another thread."""

    def __init__(self, host: str, port: int, families: Callable[[], Iterable[Family]]) -> None:
        """Listen at once; port 0 is any that is free. Raises UserError where nothing can listen there."""
        self._families = families
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise UserError(
                f"metrics cannot be served at {_place(host, port)} ({error.strerror or error}); "
                "if another run or pool has the port, give this one another: --metrics PORT"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where metrics are."""
        host, port = self._server.server_address[:2]
        return f"http://{_place(str(host), port)}{PATH}"

    @property
    def text(self) -> str:
        """All metrics, now."""
        return exposition(self._families())

    def close(self) -> None:
        """Answer no more; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Scraped(Scraping):
    """An observer of an EventLog, and the server that answers from what it has seen."""

    name = "metrics"

    def __init__(self, host: str, port: int, about: Mapping[str, str]) -> None:
        """As `Scraping`; ``about``: labels of the run itself."""
        self._newest: dict[str, Mapping[str, object]] = {}
        self._counts: dict[str, int] = {}
        super().__init__(host, port, lambda: families(dict(self._newest), dict(self._counts), about))

    def write(self, event: Mapping[str, object]) -> None:
        """Keep an event."""
        kind = str(event["kind"])
        self._newest[kind] = event
        self._counts[kind] = self._counts.get(kind, 0) + 1


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], scraped: Scraping) -> None:
        self.scraped = scraped
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asks may go away: nobody needs to know."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_SECONDS
    server_version, sys_version = "cotswold", ""

    def do_GET(self) -> None:  # the name that the base class calls
        """Answer with all metrics."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        body = cast(_Server, self.server).scraped.text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing: the terminal belongs to whoever is watched."""
