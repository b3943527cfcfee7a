"""optuna-dashboard on the journal of a search, on 127.0.0.1."""

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
        """Nothing: the terminal is the search's."""


@contextmanager
def serve_dashboard(sweep: Sweep) -> Iterator[str]:
    """Within the body the dashboard is at the address that is given."""
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
