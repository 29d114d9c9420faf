"""``tidegate serve``: the backend. As root it binds, gives up root, and only then begins."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from pathlib import Path

from tidegate.commands import _privileges
from tidegate.errors import NotFoundError, UsageError
from tidegate.settings import Settings

_DESCRIPTION = """\
Take records from collectors, keep them, and show them in the browser. Started as root, it makes the directories and
sockets and then becomes an unprivileged user for good. With --replay it shows a recording instead; then there is no
link to any collector and nothing can be switched.
"""

_EPILOG = """\
examples:
  tidegate serve                                   http://127.0.0.1:6456
  tidegate serve --port 0                          a free port; the printed URL has it
  tidegate serve --replay recordings/demo.jsonl    a recording, also .gz and .zst
  tidegate serve --replay traces/task_1            a folder, or a file, of another format that tidegate import reads
  sudo tidegate serve --user tidegate              root binds, user tidegate serves

Open the printed URL once: it logs this browser in. Every setting is also an environment variable, for example
TIDEGATE_PORT; see the documentation of tidegate.settings.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "serve",
        help="keep records and show them in the browser",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="TCP port, 0 for a free one (default 6456)")
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="show this recording, or a file or folder of a format that import reads",
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where the database is")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="where the sockets are")
    parser.add_argument("--user", metavar="NAME", help="whom root becomes (default: tidegate if it exists, or nobody)")
    parser.add_argument("--login-url-file", type=Path, metavar="PATH", help="where the login URL is written, mode 0600")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    settings = Settings.from_env(
        host=args.host,
        port=args.port,
        replay=args.replay.absolute() if args.replay else None,
        state_dir=args.state_dir.absolute() if args.state_dir else None,
        runtime_dir=args.runtime_dir.absolute() if args.runtime_dir else None,
        user=args.user,
        login_url_file=args.login_url_file.absolute() if args.login_url_file else None,
    )
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("aiosqlite", "asyncio", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if settings.replay is not None and not (settings.replay.is_file() or settings.replay.is_dir()):
        raise NotFoundError(f"{settings.replay} does not exist, or is neither a file nor a folder")
    user = _privileges.choose_user(settings.user) if os.geteuid() == 0 else None
    if user is None and settings.user is not None and settings.user != _own_name():
        raise UsageError("only root can become another user; leave --user out")
    drop = user is not None and user.pw_uid != 0
    if user is not None and drop:
        _privileges.check_readable(user)
        _privileges.prepare_state_dir(settings.state_dir, user)
    elif user is not None:
        print("tidegate: warning: the pages are served by root; leave --user root out to be safer", file=sys.stderr)
    from tidegate import app

    http = app.bind(settings)
    link: socket.socket | None = None
    if settings.replay is None:
        from tidegate.ingest.server import bind_link

        link = bind_link(settings.link_socket, gid=user.pw_gid if user else None)
    if user is not None and drop:
        _privileges.become(user)
    else:
        _privileges.no_new_privileges()
    return app.run(settings, http_socket=http, link_socket=link)


def _own_name() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
