"""The server of the page: on 127.0.0.1 only, for its own page only, until it is interrupted."""

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from threading import Thread
from typing import TYPE_CHECKING, Any

from treeopt.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
PAGE = Path(__file__).with_name("marimo_page.py")
SCRIPT = PAGE.with_name("page.js")
GRACE_S = 1  # that open connections have to end


class OwnPageOnly:
    """Passes on requests of this server's own page, with the files that it offers, and refuses those of other sites.

    A site in the same browser can reach 127.0.0.1, under its own name too; the headers `Host` and `Origin` show it.
    """

    def __init__(self, inner: "ASGIApp", *, port: int, files: Mapping[str, Any]) -> None:
        """Wrap an application on this port of the server; `files` are for the page, JSON values."""
        self.inner, self.files = inner, files
        self.hosts = {f"{host}:{port}" for host in (HOST, "localhost")}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request."""
        if scope["type"] in ("http", "websocket"):
            if not self._own(dict(scope["headers"])):
                await _refuse(scope, receive, send)
                return
            scope["meta"] = dict(self.files)
        await self.inner(scope, receive, send)

    def _own(self, headers: Mapping[bytes, bytes]) -> bool:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        return host in self.hosts and origin in ("", f"http://{host}")


def open_port(port: int) -> socket.socket:
    """Return a socket that listens on a port of 127.0.0.1; port 0 takes a free one.

    Raises:
        UsageError: the port cannot be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(f"--port {port}: {error.strerror}; choose another, or 0 for a free one") from error
    return listener


def address(listener: socket.socket) -> str:
    """Return the address of the page."""
    return f"http://{HOST}:{listener.getsockname()[1]}/"


def serve(page: "ASGIApp", listener: socket.socket, files: Mapping[str, Any]) -> None:
    """Serve the page until the process is interrupted or terminated.

    Args:
        page: from `application`.
        listener: from `open_port`; closed at the end.
        files: arguments of `Offer.of_files`, JSON values.
    """
    import uvicorn

    wrapped = OwnPageOnly(page, port=listener.getsockname()[1], files=files)
    settings = uvicorn.Config(wrapped, log_level="error", lifespan="off", timeout_graceful_shutdown=GRACE_S)
    try:
        uvicorn.Server(settings).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        listener.close()


def application() -> "ASGIApp":
    """Return the page as an ASGI application, without its code and without tracebacks."""
    import marimo

    head = f"<script>{SCRIPT.read_text('utf-8')}</script>"
    built: Any = marimo.create_asgi_app(quiet=True, include_code=False, show_tracebacks=False, html_head=head)
    app: ASGIApp = built.with_app(path="", root=str(PAGE)).build()
    return app


def open_browser(url: str) -> bool:
    """Open a page in the user's browser; what its programs print is dropped, since the address was printed.

    Returns:
        True if a program was started.
    """
    program = which("xdg-open") or which("open")
    if program is None:
        return False
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    Thread(target=subprocess.run, args=([program, url],), kwargs=silent, daemon=True).start()
    return True


async def _refuse(scope: "Scope", receive: "Receive", send: "Send") -> None:
    from starlette.responses import PlainTextResponse
    from starlette.websockets import WebSocketClose

    if scope["type"] == "websocket":
        await WebSocketClose(code=1008)(scope, receive, send)
        return
    await PlainTextResponse("This page is for this computer only.\n", status_code=403)(scope, receive, send)
