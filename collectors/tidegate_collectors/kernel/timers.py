"""A timer that polls like a socket. Python 3.11 has no timerfd, the C library has."""

from __future__ import annotations

import ctypes
import os
import time

_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """A timerfd on the monotonic clock, disarmed at first."""

    def __init__(self) -> None:
        self._descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")

    def fileno(self) -> int:
        """The descriptor; it polls readable after each expiry until :meth:`read`."""
        return self._descriptor

    def every(self, seconds: float) -> None:
        """Expire after ``seconds`` and then again and again."""
        self._set(int(seconds * 1e9))

    def stop(self) -> None:
        """Expire no more."""
        self._set(0)

    def read(self) -> int:
        """How often it expired since the last reading."""
        try:
            return int.from_bytes(os.read(self._descriptor, 8), "little")
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Free the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _set(self, nanoseconds: int) -> None:
        step = _Timespec(nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        spec = _Itimerspec(step, step)
        if _libc.timerfd_settime(self._descriptor, 0, ctypes.byref(spec), None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_settime: {os.strerror(number)}")
