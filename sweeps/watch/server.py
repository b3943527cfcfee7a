"""HTTP server for the page of a running sweep. It serves this machine only and changes nothing.

The address holds a secret, since other users of the machine can reach 127.0.0.1 too. A name other than localhost in the Host
header is refused, because a foreign page could give its own name this address (DNS rebinding).
"""

from __future__ import annotations

import functools
import json
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from analysis.marks import SOLID
from analysis.page import swatch
from harness.errors import UserError
from sweeps.watch.follow import Follower
from sweeps.watch.summary import Summary, summarise

HOSTS = ("127.0.0.1", "localhost")
EVERY = 2.0
"""Seconds between two updates of the page of a running sweep."""


class WatchServer(ThreadingHTTPServer):
    """HTTP server of the page of one sweep. port: 0 for a free one. Raises UserError if the port is taken."""

    daemon_threads = True

    def __init__(self, follower: Follower, port: int):
        self.follower, self.reading, self.secret = follower, threading.Lock(), secrets.token_urlsafe(9)
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; leave it out for a free one") from None

    @property
    def address(self) -> str:
        """Address of the page, including its secret."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.secret}/"

    def page(self, nonce: str) -> str:
        """HTML of the page, readable even without its script. nonce: admits the script under the Content-Security-Policy."""
        return _template("watch.html").render(summary=self._summary(), every=EVERY, nonce=nonce)

    def state(self) -> str:
        """HTML of the changing part of the page, without the curves."""
        return _template("state.html").render(summary=self._summary())

    def curves(self, since: int) -> dict[str, Any]:
        """Curves of the runs that changed after reading number `since`, and the number of this reading as `look`.

        If runs appeared or disappeared since then, the curves of all runs are returned, and `fresh` is true.
        """
        with self.reading:
            follower = self.follower
            follower.look()
            fresh = since < follower.renewed
            changed = [run for run in follower.runs.values() if run.points and (fresh or run.changed > since)]
            runs = {run.name: {"arm": run.arm, "seed": run.seed, "points": run.points} for run in changed}
            return {"look": follower.look_number, "fresh": fresh, "runs": runs}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Handle an error in a request as the base class does, but ignore browsers that disconnect during a response."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def _summary(self) -> Summary:
        with self.reading:
            self.follower.look()
            return summarise(self.follower)


class Handler(BaseHTTPRequestHandler):
    """Handler of GET requests for the page, its state and its curves. The base class refuses all other methods with 501."""

    server: WatchServer
    server_version, sys_version = "faultline", ""
    timeout = 30

    def do_GET(self) -> None:
        if not _local(self.headers.get("Host", "")):
            self.send_error(403, "not a name of this machine")
            return
        place = urlsplit(self.path)
        secret, slash, name = place.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(secret.encode(), self.server.secret.encode()) or not slash:
            self.send_error(404)
        elif name == "":
            nonce = secrets.token_urlsafe(12)
            self._answer("text/html", self.server.page(nonce), nonce)
        elif name == "state":
            self._answer("text/html", self.server.state())
        elif name == "curves":
            since = parse_qs(place.query).get("since", ["0"])[0]
            number = int(since) if since.isascii() and since.isdecimal() and len(since) < 10 else 0
            self._answer("application/json", json.dumps(self.server.curves(number)))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str, nonce: str = "none") -> None:
        content = text.encode(errors="backslashreplace")
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        sources = f"style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'"
        self.send_header("Content-Security-Policy", f"default-src 'none'; {sources}; base-uri 'none'; frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests, because they would push the address out of the terminal."""


def _local(host: str) -> bool:
    """Whether a Host header names this machine. Any port is accepted, since the page may be reached through a tunnel."""
    name, _, port = host.partition(":")
    return name.lower() in HOSTS and (not port or port.isdecimal())


@functools.cache
def _template(name: str) -> Any:
    loader = ChoiceLoader([PackageLoader("sweeps", "watch"), PackageLoader("analysis", "page")])  # the report's style
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["swatch"] = swatch
    environment.globals["solid"] = SOLID
    return environment.get_template(name)
