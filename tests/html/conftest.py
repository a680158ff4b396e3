"""A browser for the tests of the HTML report: one for the session, cut off from every network."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from skipway.report import to_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Request

    from skipway.parts import Part

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip(f"no Chromium on this machine: none of {', '.join(NAMES)} is in PATH")
    # The sandbox refuses to run as root, which containers are.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@dataclass
class Opened:
    """A page, what it said on its console, and what it asked for."""

    page: Page
    path: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def units(self) -> Any:
        return self.page.locator('.road [role="option"]')

    def until(self, mark: str) -> float:
        """Wait for a mark of the page's scripts; when it was set, in milliseconds from the start of the navigation."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            # `wait_for_function` would need eval, which the page forbids.
            if found := self.page.evaluate(f"performance.getEntriesByName('{mark}').map(m => m.startTime)"):
                return found[0]
            self.page.wait_for_timeout(20)
        pytest.fail(f"{self.path} never came to {mark!r}")

    def until_drawn(self) -> Opened:
        self.until("charts")
        return self

    def glass(self) -> str:
        return self.page.locator(".glass.open").inner_text()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open parts as a page; after the test nothing may have been said on the console and nothing asked for."""
    pages: list[Opened] = []

    def show(
        parts: tuple[Part, ...], *, width: int = 1280, height: int = 900, wait: str = "domcontentloaded", **how: Any
    ) -> Opened:
        path = tmp_path / f"{len(pages)}.html"
        path.write_text(to_html(parts, title="a report"), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        context.set_default_timeout(20_000)
        one = Opened(context.new_page(), path)

        def asked(request: Request) -> None:
            if request.url.split("#")[0] != path.as_uri() and not request.url.startswith(("data:", "blob:")):
                one.asked.append(request.url)

        one.page.on("request", asked)
        one.page.on("console", lambda message: one.said.append(f"{message.type}: {message.text}"))
        one.page.on("pageerror", lambda error: one.said.append(str(error)))
        one.page.on("dialog", lambda dialog: (one.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        one.page.goto(path.as_uri(), wait_until=wait)
        pages.append(one)
        return one

    yield show
    for one in pages:
        assert one.said == []
        assert one.asked == []
        one.page.context.close()
