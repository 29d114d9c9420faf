"""The one error of everything that talks to BPF."""

from __future__ import annotations

import errno
import os


class BpfError(OSError):
    """The kernel or libbpf refused something, or a program reports nonsense.

    Args:
        what: what was tried.
        code: errno, 0 when there is none.
        log: messages of libbpf and the verifier.
        explained: ``what`` says already what the errno means.
    """

    def __init__(self, what: str, code: int = 0, log: str = "", *, explained: bool = False) -> None:
        name = errno.errorcode.get(code, str(code))
        self.message = f"{what}: {os.strerror(code)} ({name})" if code and not explained else what
        self.code = code
        self.log = log
        super().__init__(code, self.message)

    def __str__(self) -> str:
        return self.message
