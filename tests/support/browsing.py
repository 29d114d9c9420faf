"""A browser page that remembers what it complained about."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import Page


@dataclass(slots=True)
class Watched:
    """A page with everything it complained about."""

    page: Page
    base_url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a path and wait until the page's script has the state."""
        self.page.goto(self.base_url + path, wait_until="domcontentloaded")
        self.page.wait_for_function("() => !(document.getElementById('badge-lost')?.textContent ?? '').includes('…')")
        return self.page
