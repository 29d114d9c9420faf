"""The content security policy in a real browser: Plotly draws under it, and nothing of a page is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.server import running_server

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# Chromium lets code that is run by the debugger use eval; what a timer runs later is under the policy again.
LATER = """() => new Promise((resolve) => setTimeout(async () => {
    const figure = document.createElement('div');
    document.body.append(figure);
    await Plotly.newPlot(figure, [{x: [1, 2, 3], y: [1, 3, 2], type: 'scatter', line: {shape: 'hv'}}],
        {width: 400, height: 200});
    const lines = figure.querySelectorAll('path.js-line').length;
    window.refusedByPlotly = window.refused.length;
    let evaluated = 'ran';
    try { eval('1'); } catch (error) { evaluated = error.name; }
    resolve([lines, window.refusedByPlotly, evaluated]);
}, 0))"""

LISTEN = """window.refused = [];
document.addEventListener('securitypolicyviolation', (event) => window.refused.push(event.violatedDirective));"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_plotly_draws_and_nothing_is_refused(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = browser.new_context()
            cookie = {"name": "tidegate_session", "value": server.cookies["tidegate_session"], "url": server.base_url}
            context.add_cookies([cookie])
            page = context.new_page()
            page.add_init_script(LISTEN)
            page.goto(server.base_url + "/", wait_until="load")
            lines, refused, evaluated = page.evaluate(LATER)
            assert lines == 1
            assert refused == 0
            assert evaluated == "EvalError"  # the policy was in force
        finally:
            browser.close()
