"""A browser page that remembers what it complained about, and what every page is looked at for."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import Page

# Text nodes that are seen, hold a digit, and neither carry a definition nor are somebody's words.
UNDEFINED_NUMBERS = r"""(keys) => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!/\d/.test(node.data) || parent.closest("script, style, noscript, option, [hidden]")) continue;
    if (!parent.checkVisibility()) continue;
    if (parent.closest("[data-text]")) continue;
    const defined = parent.closest("[data-def]");
    const text = node.data.trim().slice(0, 60);
    if (!defined) found.push(`no definition: ${text}`);
    else if (!keys.includes(defined.dataset.def)) found.push(`${defined.dataset.def} is not defined: ${text}`);
  }
  return found;
}"""

# Contrast of each visible text against the first opaque background behind it (WCAG 2, level AA for normal text).
LOW_CONTRAST = r"""() => {
  const parse = (text) => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => c.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility()) continue;
    if (parent.closest("svg, script, option, :disabled, .skip, .visually-hidden")) continue;
    let behind = parent;
    while (behind && parse(getComputedStyle(behind).backgroundColor)[3] < 1) behind = behind.parentElement;
    const a = light(parse(getComputedStyle(parent).color));
    const b = light(parse(getComputedStyle(behind || document.body).backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.add(`${ratio.toFixed(2)} ${node.data.trim().slice(0, 30)}`);
  }
  return [...found];
}"""


# Boxes that scroll sideways: what is behind their edge is seen by nobody.
OVERFLOWING = r"""() => [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.firstElementChild.id}: ${box.scrollWidth} in ${box.clientWidth}`)"""


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
