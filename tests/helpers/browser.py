"""Headless Chromium for tests of pages: what a page requests and reports is watched."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
TIMEOUT_MS = int(os.environ.get("TREEOPT_PAGE_TIMEOUT_MS", "60000"))  # of a page on a busy machine


@dataclass
class Watched:
    """A page of the browser, the hosts that it asked, and the errors that it reported."""

    page: Any
    hosts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def clean(self, *hosts: str) -> bool:
        """Nothing went wrong, and no other host was asked."""
        assert self.errors == []
        assert self.hosts <= set(hosts), self.hosts
        return True


@contextmanager
def started() -> Iterator[Any]:
    """Start Chromium: TREEOPT_CHROMIUM, or the one that is installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("TREEOPT_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "no Chromium is installed: name one in TREEOPT_CHROMIUM"
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(
    browser: Any, *, width: int = 1280, dark: bool = False, levels: tuple[str, ...] = ("error",), **more: Any
) -> Iterator[Watched]:
    """Open an empty page of this width; it is watched from the first request on, its console for these levels."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    seen = Watched(page)
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).hostname or urlsplit(request.url).scheme))
    page.on("websocket", lambda socket: seen.hosts.add(urlsplit(socket.url).hostname or "websocket"))
    page.on("console", lambda line: seen.errors.append(line.text) if line.type in levels else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    try:
        yield seen
    finally:
        context.close()


def overflow(page: Any) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
