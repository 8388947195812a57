"""Serve the page of a run that follows it while it goes on: on this machine alone, from its run folder alone."""

from __future__ import annotations

import contextlib
import http.server
import os
import secrets
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from outlay.core.error_types import OutputError
from outlay.render.html import html_of_page
from outlay.render.page import Page
from outlay.render.pictures import Live
from outlay.report.run_page import page_so_far
from outlay.report.show import show
from outlay.train.run_record import RunRecord

WATCH = "OUTLAY_WATCH"
"""The variable with the port and the key of the page, so that a job that starts again serves it at the same address."""

_HERE = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
_EVERY = 1.0  # seconds between two looks of a page
_LAST_LOOK = 3.0  # seconds that the end of a run waits for a page that follows it
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer:
    """Serves the page of one run on the loopback interface.

    The address holds a key, since other users of the machine can reach the port too. Nothing but the page, and the one
    of its arrays, can be asked for, and only by name of this machine: a page of somebody else's in the browser cannot
    read it under a name that it has pointed here.

    Args:
        path: the run folder.
        port: the port; 0 for one that is free.
        key: the key; a new one if empty.

    Attributes:
        address: where the page is.

    Raises:
        RunFolderError: the folder is not one of a run.
        OutputError: the port is not free.
    """

    def __init__(self, path: Path, port: int = 0, key: str = "") -> None:
        self._record = RunRecord(path)
        self._lock = threading.Lock()
        self._key = key or secrets.token_urlsafe(12)
        self._page: tuple[str, str] = ("", "")
        self._asked, self._given = 0.0, ""
        try:
            self._server = http.server.ThreadingHTTPServer((_HERE, port), self._handler())
        except (OSError, OverflowError) as error:
            raise OutputError(
                f"port {port} of {_HERE} cannot be served: {getattr(error, 'strerror', None) or error}"
                "\n  fix: --port with another number, or without it for one that is free"
            ) from error
        self._server.daemon_threads = True
        self.address = f"http://{_HERE}:{self._server.server_address[1]}/{self._key}/"

    def serve(self) -> None:
        """Serve until `close`, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """End `serve` in another thread, after a page that follows the run has seen its end."""
        end = time.monotonic() + _LAST_LOOK
        while time.monotonic() < end and self._asked > time.monotonic() - 2 * _EVERY:
            if self._given == self._current()[0]:
                break
            time.sleep(0.05)
        self._server.shutdown()
        self._server.server_close()

    def shut(self) -> None:
        """Free the port, where nothing serves any more."""
        self._server.server_close()

    def answer(self, address: str, tag: str) -> tuple[HTTPStatus, str, str]:
        """Return the status, the tag and the page of an address.

        Args:
            address: the path in the address.
            tag: the tag of the page that is there already.
        """
        if address == f"/{self._key}/":
            now, page = self._current()
            self._asked, self._given = time.monotonic(), now
            return (HTTPStatus.NOT_MODIFIED, now, "") if tag == now else (HTTPStatus.OK, now, page)
        if address == f"/{self._key}/arrays" and (plan := self._record.plan) is not None:
            return HTTPStatus.OK, "", show(plan).to_html()
        return HTTPStatus.NOT_FOUND, "", ""

    def _current(self) -> tuple[str, str]:
        """Return the page as it is now, with its tag; it is drawn again when there is something new."""
        with self._lock:
            self._record.refresh()
            tag = f'"{self._record.version}-{self._record.state}"'
            if self._page[0] != tag:
                page = page_so_far(self._record)
                live = Live(_EVERY, {"where every array lives": "arrays"})
                self._page = tag, html_of_page(Page(page.title, [live, *page.blocks], chips=page.chips))
            return self._page

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10  # seconds that a connection may stay silent
            server_version, sys_version = "outlay", ""

            def do_GET(self) -> None:
                if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
                    self.send_error(HTTPStatus.FORBIDDEN, "only by the name of this machine")
                    return
                status, tag, page = server.answer(self.path, self.headers.get("If-None-Match", ""))
                body = page.encode(errors="replace")
                self.send_response(status)
                for name, value in _HEADERS.items():
                    self.send_header(name, value)
                if tag:
                    self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Write nothing: stderr is the run's."""

        return Handler


@contextlib.contextmanager
def served(path: Path) -> Iterator[LiveServer]:
    """Serve the page of a run from a thread while this block runs.

    Args:
        path: the run folder.

    Raises:
        OutputError: the port that the job was given is not free.
    """
    port, _, key = os.environ.get(WATCH, "0 ").partition(" ")
    server = LiveServer(path, int(port), key)
    threading.Thread(target=server.serve, name="outlay-watch", daemon=True).start()
    try:
        yield server
    finally:
        server.close()


def same_address() -> str:
    """Return a value of `WATCH`: a port that is free now, and a new key."""
    import socket

    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        return f"{probe.getsockname()[1]} {secrets.token_urlsafe(12)}"
