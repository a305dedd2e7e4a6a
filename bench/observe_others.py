"""The other programs of bench_observe, in a process of their own: one reads an endpoint once a
second while the switch is on, one collects what OpenTelemetry exports. Ends with its stdin.

    python bench/observe_others.py        prints the collector's port, then reads the endpoint's URL
"""

from __future__ import annotations

import os
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from observe_switch import VARIABLE, Switch


class Collector(BaseHTTPRequestHandler):
    """Takes whatever is posted."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def main() -> None:
    """Serves and reads until stdin ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    url = sys.stdin.readline().strip()
    switch, over = Switch(Path(os.environ[VARIABLE])), threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    while not over.wait(1.0):
        if url and switch.is_on:
            urllib.request.urlopen(url, timeout=5).read()


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
