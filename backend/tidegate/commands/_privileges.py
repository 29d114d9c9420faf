"""Giving up root: who the backend becomes, whether that user can read our code, and the step itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidegate.errors import StoreError, UnavailableError, UsageError
from tidegate_collectors.link import service_user

_PR_SET_NO_NEW_PRIVS: Final = 38


def choose_user(name: str | None) -> pwd.struct_passwd:
    """The user to become: the named one, else ``tidegate``, else ``nobody``.

    Raises:
        UsageError: the named user does not exist, or there is no unprivileged user at all.
    """
    if name is not None:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            raise UsageError(f"there is no user {name!r}; make it with: useradd --system {name}") from None
    user = service_user()
    if user is None:
        raise UsageError("neither user 'tidegate' nor 'nobody' exists; name an unprivileged one with --user")
    return user


def code_directories() -> list[Path]:
    """Directories that the backend still reads after the start: the interpreter's, the packages', our own."""
    import tidegate
    import tidegate_collectors

    places = {Path(sys.prefix), Path(os.__file__).parent}
    for package in (tidegate, tidegate_collectors):
        places.update(Path(entry) for entry in package.__path__)
    places.update(Path(entry) for entry in sys.path if entry and Path(entry).is_dir())
    return sorted(places)


def unreadable_by(user: pwd.struct_passwd, places: Iterable[Path]) -> Path | None:
    """The first of the directories that the user cannot list; found by trying it in a child that has become that user.

    Only to be called as root.
    """
    candidates = list(places)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            become(user)
            for number, place in enumerate(candidates):
                try:
                    entries = [entry for entry in os.scandir(place) if entry.name.endswith(".py")]
                    for entry in entries[:1]:
                        os.close(os.open(entry.path, os.O_RDONLY))
                except OSError:
                    os.write(writer, str(number).encode())
                    break
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise UnavailableError(f"cannot become user {user.pw_name!r}: the kernel refused it")
    return candidates[int(answer)] if answer else None


def check_readable(user: pwd.struct_passwd) -> None:
    """Refuse to go on when the user could not read our own code.

    Raises:
        UnavailableError: says which directory, and what to do.
    """
    place = unreadable_by(user, code_directories())
    if place is not None:
        raise UnavailableError(
            f"user {user.pw_name!r} cannot read {place}, which the backend needs. Install Tidegate where everybody can "
            f"read it (for example a venv below /opt), run it as an unprivileged user, or, knowing that a flaw in "
            f"the web pages would then be a flaw of root's, with --user root"
        )


def prepare_state_dir(path: Path, user: pwd.struct_passwd) -> None:
    """Make the state directory for the user, and give it the database files that root left in it.

    A directory that is there already and that the user can write by owner or group is left as it is.

    Raises:
        StoreError: it cannot be made, or belongs to somebody else.
    """
    try:
        if not path.exists():
            path.mkdir(parents=True, mode=0o700)
            os.chown(path, user.pw_uid, user.pw_gid)
        status = path.stat()
        writable = (status.st_uid == user.pw_uid and status.st_mode & 0o200) or (
            status.st_gid == user.pw_gid and status.st_mode & 0o020
        )
        if not writable:
            raise StoreError(
                f"user {user.pw_name!r} cannot write in {path}; "
                f"run: chown {user.pw_name} {path}, or choose another --state-dir"
            )
        for name in ("tidegate.db", "tidegate.db-wal", "tidegate.db-shm", "tidegate.db.lock"):
            _give(path / name, user)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; choose another --state-dir") from None


def _give(path: Path, user: pwd.struct_passwd) -> None:
    # By descriptor and never through a link: the directory may be writable for others than root.
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if status.st_uid == 0 and status.st_nlink == 1:
                os.fchown(fd, user.pw_uid, user.pw_gid)
        finally:
            os.close(fd)


def become(user: pwd.struct_passwd) -> None:
    """Become the user for good: groups, ids, and no way back through set-uid programs.

    Raises:
        UnavailableError: the kernel refused a step, or root could be had back.
    """
    try:
        os.setgroups([user.pw_gid])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as error:
        raise UnavailableError(f"cannot become user {user.pw_name!r}: {error.strerror}") from None
    no_new_privileges()
    if user.pw_uid != 0:
        with contextlib.suppress(PermissionError):
            os.setuid(0)
            raise UnavailableError("root was given up, and could be taken back; refusing to go on")
        os.environ["HOME"] = user.pw_dir


def no_new_privileges() -> None:
    """From now on no set-uid program gives this process or its children more rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise UnavailableError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
