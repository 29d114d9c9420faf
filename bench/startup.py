"""Seconds from ``./start_backend.sh`` to the first page, with the dependencies installed.

Each run starts the script with a new state directory and measures until the Live page has been read in full after the
login. Reference, in the same run: the time from starting Python to the first answer of a one-line FastAPI application
under uvicorn, which is what the web framework alone takes.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench._report import Report, arguments, progress
from bench._stack import BenchError, fail, free_port

REPOSITORY = Path(__file__).resolve().parent.parent
_LOGIN = re.compile(r"https?://\S+(/login\?token=\S+)")

_HELLO = """
import sys, fastapi, uvicorn
app = fastapi.FastAPI()
app.get("/")(lambda: {"hello": "world"})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("startup", __doc__).full
    runs = 15 if full else 5
    try:
        setup = subprocess.run([str(REPOSITORY / "start_backend.sh"), "--setup-only"], env=_environment(None))
        if setup.returncode:
            raise BenchError("./start_backend.sh --setup-only failed")
        pages, hellos = [], []
        for number in range(runs):
            pages.append(first_page_s())
            hellos.append(hello_world_s())
            progress(f"run {number + 1}: first page {pages[-1]:.2f} s, hello world {hellos[-1]:.2f} s")
    except BenchError as error:
        return fail("startup", error)
    report = Report(
        bench="startup",
        value=statistics.median(pages),
        unit="s",
        reference_name="FastAPI hello world under uvicorn, first answer",
        reference_value=statistics.median(hellos),
        runs=runs,
        details={"first_page_s": pages, "hello_world_s": hellos, "root": os.geteuid() == 0, "goal_s": 3},
    )
    print(report.line())
    return 0


def first_page_s() -> float:
    """One start, from the script to the last byte of the Live page; then stopped with TERM."""
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    root.chmod(0o755)
    port = free_port()
    started = time.perf_counter()
    with (root / "output").open("wb") as output:
        script = subprocess.Popen(
            [str(REPOSITORY / "start_backend.sh"), "--port", str(port)],
            env=_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        assert script.stdout is not None
        found = _LOGIN.search(script.stdout.readline())
        if found is None:
            raise BenchError(f"no login URL: {(root / 'output').read_text()[-1000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", found[1])
        answer = connection.getresponse()
        answer.read()
        cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        connection.request("GET", "/", headers={"Cookie": cookie})
        page = connection.getresponse()
        body = page.read()
        took = time.perf_counter() - started
        connection.close()
        if page.status != 200 or b"</html>" not in body:
            raise BenchError(f"the Live page answered {page.status}")
        return took
    finally:
        script.send_signal(signal.SIGTERM)
        script.wait(40)
        shutil.rmtree(root, ignore_errors=True)


def hello_world_s() -> float:
    """One start of the reference, to its first answer."""
    port = free_port()
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _HELLO, str(port)], stdin=subprocess.DEVNULL)
    try:
        while time.perf_counter() - started < 30:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/")
                connection.getresponse().read()
                connection.close()
                return time.perf_counter() - started
            time.sleep(0.01)
        raise BenchError("the reference did not answer")
    finally:
        process.terminate()
        process.wait(10)


def _environment(root: Path | None) -> dict[str, str]:
    environment = dict(os.environ)
    if root is not None:
        environment |= {"TIDEGATE_STATE_DIR": str(root / "state"), "TIDEGATE_RUNTIME_DIR": str(root / "run")}
    return environment


if __name__ == "__main__":
    sys.exit(main())
