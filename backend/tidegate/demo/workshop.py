"""The files that the demo's tools work on: a small repository, a test suite, a C file, a server. All in a temp dir."""

from __future__ import annotations

import random
from pathlib import Path

MIB = 1 << 20

PARSER_PY = '''\
"""A small parser, so that there is something to test and to search."""


def parse(text):
    fields = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"line {number}: no colon")
        fields[key.strip()] = value.strip()
    return fields
'''

# Plain unittest classes: pytest runs them as well, so one suite serves whichever is installed.
TEST_PARSER_PY = """\
import os
import time
import unittest

from parser_ import parse


class ParserTest(unittest.TestCase):
    def test_fields(self):
        self.assertEqual(parse("a: 1\\nb: 2"), {"a": "1", "b": "2"})

    def test_no_colon(self):
        with self.assertRaises(ValueError):
            parse("nothing")

    def test_many_lines(self):
        text = "\\n".join(f"key{n}: {n}" for n in range(60_000))
        self.assertEqual(len(parse(text)), 60_000)

    def test_large_fixture(self):
        block = b"z" * (int(os.environ["DEMO_FIXTURE_MB"]) << 20)
        time.sleep(0.3)
        self.assertEqual(block[-1:], b"z")
"""

TEST_BROKEN_PY = """\
import unittest


class BrokenTest(unittest.TestCase):
    def test_never_passes(self):
        table = [list(range(1000)) for _ in range(1500)]
        self.assertEqual(len(table), 1501)
"""

# bytes * n writes every page, so the memory is really taken; a bytearray(n) would stay untouched zero pages.
CRUNCH_PY = '''\
"""crunch.py MEGABYTES SECONDS: takes that much memory as fast as the host gives it, holds it, lets go."""
import sys
import time

megabytes, seconds = int(sys.argv[1]), float(sys.argv[2])
started = time.perf_counter()
blocks = [b"\\x5a" * (16 << 20) for _ in range(max(1, megabytes // 16))]
took = time.perf_counter() - started
time.sleep(seconds)
print(f"{len(blocks) * 16} MB in {took:.2f} s")
'''

# Ends by itself, should the agent that left it behind be killed before it could end it.
SERVER_PY = '''\
"""server.py SECONDS: a development server that nobody stops: holds 48 MB and does nothing."""
import sys
import time

pages = b"\\x01" * (48 << 20)
time.sleep(float(sys.argv[1]))
'''


def write_repository(root: Path, rng: random.Random) -> None:
    """A package with modules to search through, a parser and its tests. ``root`` is made."""
    package = root / "package"
    package.mkdir(parents=True)
    for number in range(120):
        lines = [f'"""Module {number}."""', ""]
        for function in range(40):
            lines += [f"def step_{number}_{function}(value):", f"    return value * {rng.randrange(1, 99)}", ""]
        (package / f"module_{number:03}.py").write_text("\n".join(lines), encoding="utf-8")
    (root / "parser_.py").write_text(PARSER_PY, encoding="utf-8")
    (root / "test_parser.py").write_text(TEST_PARSER_PY, encoding="utf-8")


def write_broken_suite(root: Path) -> None:
    """A suite that fails each time it is run."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "test_broken.py").write_text(TEST_BROKEN_PY, encoding="utf-8")


def write_c_source(path: Path, functions: int, rng: random.Random) -> None:
    """A C file that keeps an optimising compiler busy for about a second per 100 functions."""
    parts = ["#include <stdio.h>", "#include <stdlib.h>"]
    for number in range(functions):
        a, b, c = (rng.randrange(3, 97) for _ in range(3))
        parts.append(
            f"static long f{number}(long x, const long *t) {{ long s = x; for (int i = 0; i < {a + 16}; i++) {{"
            f" s += t[i & 63] * {b} ^ (s >> {c % 13 + 1}); if (s % {c} == 0) s -= t[(i * {a}) & 63]; }} return s; }}"
        )
    parts.append("int main(void) { long t[64]; for (int i = 0; i < 64; i++) t[i] = i; long s = 1;")
    parts += [f"  s = f{number}(s, t);" for number in range(functions)]
    parts.append('  printf("%ld\\n", s); return 0; }')
    path.write_text("\n".join(parts), encoding="utf-8")


def write_tools(root: Path) -> None:
    """The programs that the agents run as tools."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "crunch.py").write_text(CRUNCH_PY, encoding="utf-8")
    (root / "server.py").write_text(SERVER_PY, encoding="utf-8")
