"""Puts the backend together: store, ingest or recording, fold, hub, pages; opens it, serves it, closes it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI

from tidegate.errors import UsageError
from tidegate.fold import State
from tidegate.ingest import Ingest, LinkServer, bind_link
from tidegate.runs.folder import PrivateFolder, new_part, remove_leftovers
from tidegate.runs.jobs import Jobs
from tidegate.runs.library import Library
from tidegate.runs.messages import Progress, Task
from tidegate.runs.process import run_worker
from tidegate.runs.retention import keep_limits
from tidegate.settings import Settings
from tidegate.store import AnyLine, open_store, snapshots
from tidegate.store.retention import Limits
from tidegate.store.rollups import keep_rollups
from tidegate.web import AppState, Live, Opened, create_app
from tidegate.web.feed import Feed
from tidegate.web.frames import Frames
from tidegate.web.hub import Hub
from tidegate.web.pages import Pages
from tidegate.web.security import FailureLimit, LoginToken, SessionStore
from tidegate.web.security.hosts import split_host
from tidegate.web.static import StaticFiles, frontend_dir
from tidegate.web.templates import Templates

GC_THRESHOLD: Final = (50_000, 20, 100)

GRACE_S: Final = 2
"""How long an answer that is under way may take after the server was told to end, seconds."""

TAKES_NOTHING_MS: Final = 300_000
"""A client that takes nothing of what it is sent for so long is gone, whatever its socket says."""

START_S: Final = 20.0
"""How long the start waits for the process that reads a recording to begin with it, seconds."""

READ_AHEAD_S: Final = 3.0
"""How long the first page then waits for the recording; after that it is served, and the API says 503 meanwhile."""

_SOURCES_S: Final = 1.0
"""How often the collectors' connections are looked at for the stream."""


def prepare(settings: Settings) -> AppState:
    """Everything of a backend that needs no database; nothing is opened yet.

    Raises:
        UsageError: a setting is wrong.
    """
    for entry in settings.allowed_hosts:
        if split_host(entry) is None:
            raise UsageError(f"allowed host {entry!r}: expected NAME or NAME:PORT")
    with contextlib.suppress(OSError):
        settings.state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    frontend = frontend_dir()
    state = AppState(
        settings=settings,
        static=StaticFiles(frontend / "static"),
        sessions=SessionStore(settings.state_dir / "web-sessions.json"),
        token=LoginToken(settings.state_dir, settings.login_url_file),
        failures=FailureLimit(),
        state=State(track=settings.replay is None),
    )
    state.hub = Hub(Frames(state), settings.tick_ms / 1000)
    state.feed = Feed(state.state, state.hub.notify)
    state.pages = Pages(state, Templates(frontend / "templates"))
    return state


@asynccontextmanager
async def opened(state: AppState, link_socket: socket.socket | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """Open a prepared backend, and close it at the end.

    What the run holds already is folded in the background, so that pages are served and collectors let in at once: the
    fold of a long run takes minutes, and what they keep for us meanwhile is bounded. The task that does it is yielded:
    it fails when the store is damaged, or the ingest has ended.

    Args:
        link_socket: where collectors connect, bound; by default the one of the settings. A replay has none.

    Raises:
        TidegateError: the store, the link or the recording cannot be opened.
    """
    async with contextlib.AsyncExitStack() as stack:
        if state.replay:
            loading = await _open_replay(state, stack)
        else:
            loading = await _open_live(state, stack, link_socket)
        # The last in is the first out: streams end before what feeds them does.
        stack.callback(state.hub.close)
        state.static.warm()
        yield loading


async def _open_replay(state: AppState, stack: contextlib.AsyncExitStack) -> asyncio.Task[None]:
    path = state.settings.replay
    assert path is not None  # noqa: S101 - what replay means
    private = PrivateFolder()
    stack.callback(private.remove)
    begun, is_read = asyncio.Event(), asyncio.Event()

    def progress(now: Progress) -> None:
        state.records_read = now.records
        begun.set()

    async def load() -> None:
        part = new_part(private.path)
        done = await run_worker(Task(source=str(path), name=str(path), part=str(part), nice=0, folder=True), progress)
        library = Library(private.path, current=done.run_id)
        jobs = Jobs(private.path, library.ids, max_upload_bytes=state.settings.upload_bytes)
        try:
            recording = await library.open(done.run_id)
            state.library, state.jobs = library, jobs
            state.opened = Opened(recording.store, recording.run, None, done.report)
            state.records_read = None
            is_read.set()
            # The import has left a snapshot of its end.
            await snapshots.load(recording.store, recording.run, state.state)
            rest = recording.store.reads.records(recording.run.id, from_ord=state.state.ord + 1)
            await state.feed.load(rest)
            await asyncio.Event().wait()  # until it is cancelled at the end
        finally:
            _shut(state)
            await jobs.close()
            await library.close()

    state.records_read = 0
    loading = asyncio.create_task(load(), name="tidegate-load")
    stack.push_async_callback(_cancel, loading)
    # What is no recording shows at once, and a small one is read at once. A large one is read while pages say so.
    for event, timeout_s in ((begun, START_S), (is_read, READ_AHEAD_S)):
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait({loading, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    if loading.done():
        await loading
    return loading


async def _open_live(
    state: AppState, stack: contextlib.AsyncExitStack, link_socket: socket.socket | None
) -> asyncio.Task[None]:
    settings = state.settings
    store = await open_store(settings.database)
    stack.push_async_callback(store.close)
    sock = link_socket if link_socket is not None else bind_link(settings.link_socket)
    stack.callback(sock.close)
    stack.push_async_callback(state.feed.close)
    ingest = Ingest(store, on_commit=state.feed.on_commit)
    run = await ingest.start()
    stack.push_async_callback(ingest.stop)
    link = LinkServer(ingest, sock, allowed_uids=settings.link_uids)
    stack.push_async_callback(link.stop)
    await asyncio.to_thread(remove_leftovers, settings.recordings)
    library = Library(settings.recordings, live=store, writing=run, current=run.id)
    stack.push_async_callback(library.close)
    jobs = Jobs(settings.recordings, library.ids, max_upload_bytes=settings.upload_bytes)
    stack.push_async_callback(jobs.close)
    state.library, state.jobs = library, jobs
    state.opened = Opened(store, run, Live(ingest, link), None)
    stack.callback(_shut, state)
    stack.push_async_callback(_cancel, asyncio.create_task(keep_rollups(store, run), name="tidegate-rollups"))
    limits = Limits(settings.keep_days, settings.keep_bytes)
    keeping = asyncio.create_task(keep_limits(library, store, limits, ingest.record), name="tidegate-retention")
    stack.push_async_callback(_cancel, keeping)

    async def past() -> AsyncIterator[list[tuple[int, AnyLine]]]:
        # Up to what is committed when all before it is folded: the feed keeps only some of what comes meanwhile.
        while (done := state.state.ord) < run.last_ord:
            async for records in store.reads.records(run.id, from_ord=done + 1, to_ord=run.last_ord):
                yield records

    async def load() -> None:
        await link.start()
        await state.feed.keep(store, run)
        await state.feed.load(past())
        while True:
            ingest.check()
            await asyncio.sleep(_SOURCES_S)
            state.hub.notify()

    loading = asyncio.create_task(load(), name="tidegate-load")
    stack.push_async_callback(_cancel, loading)
    return loading


def _shut(state: AppState) -> None:
    state.opened = state.library = state.jobs = None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def build(settings: Settings) -> FastAPI:
    """The application for another ASGI server; its lifespan opens and closes the backend."""
    state = prepare(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with opened(state):
            yield

    return create_app(state, lifespan)


def bind(settings: Settings) -> socket.socket:
    """The listening TCP socket of the pages.

    Raises:
        UsageError: the address is not one of this machine's loopback, or cannot be had.
    """
    host = "127.0.0.1" if settings.host == "localhost" else settings.host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"--host {settings.host}: expected an IP address or localhost") from None
    if not address.is_loopback:
        raise UsageError(
            f"--host {settings.host} can be reached from other machines, and Tidegate's pages have no TLS. Serve on "
            f"127.0.0.1 and forward the port: ssh -L {settings.port or 6456}:127.0.0.1:{settings.port or 6456} HOST"
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; else each answer's body waits 40 ms for the acknowledgement of
    # its head.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A browser that hangs, or a pipe that nobody reads, must not keep a stream for ever: the kernel ends those.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKES_NOTHING_MS)
        sock.bind((host, settings.port))
        sock.listen(128)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise UsageError(f"port {settings.port} of {host}: {error.strerror}; choose another with --port") from None
    return sock


def announce(url: str) -> None:
    """Print the login URL."""
    print(f"Tidegate is ready. Open (once): {url}", flush=True)


def run(
    settings: Settings,
    *,
    http_socket: socket.socket | None = None,
    link_socket: socket.socket | None = None,
    on_ready: Callable[[str], None] = announce,
) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    Args:
        http_socket: bound by :func:`bind`, by a process with more rights perhaps.
        link_socket: bound by :func:`tidegate.ingest.bind_link`; none in a replay.
        on_ready: called with the login URL when the pages can be opened.

    Raises:
        TidegateError: the backend cannot be opened.
    """
    sock = http_socket if http_socket is not None else bind(settings)
    with contextlib.suppress(KeyboardInterrupt), sock:
        asyncio.run(_serve(settings, sock, link_socket, on_ready))
    return 0


class _Server(uvicorn.Server):
    """Ends open streams before it waits for connections to close, and leaves signals to us."""

    def __init__(self, config: uvicorn.Config, state: AppState, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._state = state
        self._tell = started

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        # uvicorn would raise the signal again at the end, and SIGTERM would kill us before the store is closed.
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.hub.close()
        await super().shutdown(sockets)


async def _serve(
    settings: Settings, sock: socket.socket, link_socket: socket.socket | None, on_ready: Callable[[str], None]
) -> None:
    state = prepare(settings)
    host, port = sock.getsockname()[:2]
    config = uvicorn.Config(
        create_app(state),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _Server(config, state, lambda: on_ready(state.token.publish(host, port)))
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - a coroutine runs in a task

    def stop() -> None:
        if server.started:
            server.should_exit = True
        else:
            this.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        async with opened(state, link_socket) as loading:
            # It ends only by failing; then there is nothing true to show.
            loading.add_done_callback(lambda task: None if task.cancelled() or task.exception() is None else stop())
            # What a start leaves behind stays, and a collection that went through all of it would hold up every answer.
            gc.freeze()
            # A batch makes tens of thousands of objects that all go again: looking through them costs a tenth of it.
            gc.set_threshold(*GC_THRESHOLD)
            await server.serve(sockets=[sock])
            if loading.done():
                await loading
    except asyncio.CancelledError:
        pass
    finally:
        state.token.withdraw()
