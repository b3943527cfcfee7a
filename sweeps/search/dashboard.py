"""Server of optuna-dashboard for the journal of a search, on 127.0.0.1."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sweeps.ledger import Sweep
from sweeps.search.study import journal


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, since the terminal shows the search."""


@contextmanager
def serve_dashboard(sweep: Sweep) -> Iterator[str]:
    """Context manager that serves the dashboard of a search, and yields the address of the page."""
    from optuna_dashboard import wsgi

    with make_server("127.0.0.1", 0, wsgi(journal(sweep)), _Server, _Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def until_interrupted(message: str) -> None:
    """Print the message and wait for Ctrl-C."""
    print(message, file=sys.stderr, flush=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
