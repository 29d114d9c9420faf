"""Command lines and what they are for: a list checked by hand, hostile text, wrong tables, real command lines."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import HOSTILE
from tidegate_collectors.categories import Table, TableError, classify, configured_table, load
from tidegate_collectors.categories.shell import segments

# Written for this test in the way agents write their commands: (script of bash -c, category, summary).
SCRIPTS = [
    ("pytest", "tests", "pytest"),
    ("pytest -x tests/unit 2>&1 | tail -40", "tests", "pytest"),
    ("cd /srv/app && python -m pytest -q --no-header", "tests", "python -m pytest"),
    ("source .venv/bin/activate && python3.11 -m pytest", "tests", "python3.11 -m pytest"),
    ("PYTHONPATH=src timeout 60 python -m unittest discover", "tests", "python -m unittest"),
    ("timeout -k 5 60 tox -e py311", "tests", "tox"),
    ("uv run pytest -n 4", "tests", "pytest"),
    ("uv run --with httpx python -m pytest", "tests", "python -m pytest"),
    ("python manage.py test shop", "tests", "python manage.py test"),
    ("python tests/test_login.py", "tests", "python"),
    ("coverage run -m pytest", "tests", "coverage"),
    ("npm test", "tests", "npm test"),
    ("npm run test -- --watch=false", "tests", "npm test"),
    ("npx jest src/app", "tests", "jest"),
    ("cargo test --release", "tests", "cargo test"),
    ("go test ./...", "tests", "go test"),
    ("make -j 4 check", "tests", "make check"),
    ("pip install -e . && pytest", "tests", "pytest"),
    ("git stash && pytest; git stash pop", "tests", "pytest"),
    ("for f in a b; do pytest $f; done", "tests", "pytest"),
    ("pip install requests -q", "install", "pip install"),
    ("python -m pip install --upgrade pip", "install", "python -m pip install"),
    ("uv pip install -r requirements.txt", "install", "uv pip"),
    ("sudo -n apt-get -o Dpkg::Use-Pty=0 install -y jq", "install", "apt-get install"),
    ("DEBIAN_FRONTEND=noninteractive sudo -E apt install jq", "install", "apt install"),
    ("npm ci", "install", "npm ci"),
    ("python -m venv .venv", "install", "python -m venv"),
    ("conda create -n x python=3.11", "install", "conda create"),
    ("make", "build", "make"),
    ("make -C src clean", "build", "make clean"),
    ("gcc -O2 -o x x.c", "build", "gcc"),
    ("cargo build --release", "build", "cargo build"),
    ("cmake --build out", "build", "cmake"),
    ("python setup.py build_ext --inplace", "build", "python setup.py build_ext"),
    ("mypy --strict src", "build", "mypy"),
    ("ruff check .", "build", "ruff check"),
    ("git diff HEAD~1 -- a.py | head -50", "git", "git diff"),
    ("git -C /srv/app log --oneline -5", "git", "git log"),
    ("git --no-pager show HEAD:a.py", "git", "git show"),
    ('git add -A && git commit -m "fix: the (odd) one; really"', "git", "git add"),
    ("cd /srv && git status", "git", "git status"),
    ("grep -rn 'def run' src | head", "search", "grep"),
    ("find . -name '*.py' -not -path './.git/*' | xargs grep -l foo", "search", "find"),
    ("rg -n TODO", "search", "rg"),
    ("ls -la /srv", "search", "ls"),
    ("cd src; ls", "search", "ls"),
    ("cat setup.cfg", "read", "cat"),
    ("sed -n '10,20p' a.py", "read", "sed"),
    ("head -50 a.py && wc -l a.py", "read", "head"),
    ("pip list 2>/dev/null", "read", "pip list"),
    ("sed -i 's/a/b/' a.py", "edit", "sed -i"),
    ("sed -E -i.bak -e 's/a/b/' a.py", "edit", "sed -i"),
    ("cat > a.py <<'EOF'\nimport os\nos.system('pytest')\nEOF", "edit", "cat"),
    ("echo hello >> notes.txt", "edit", "echo"),
    ("printf '%s' x | tee -a notes.txt", "edit", "tee"),
    ("patch -p1 < fix.diff", "edit", "patch"),
    ("mkdir -p out", "edit", "mkdir"),
    ("python -c 'import sys; print(sys.path)'", "python", "python -c"),
    ("python3 - <<EOF\nprint('git diff')\nEOF", "python", "python3"),
    ("python -X dev -W error run.py --fast", "python", "python"),
    ("python -u -m myapp.server", "python", "python -m"),
    ("git show HEAD:a.json | python -c 'import json'", "python", "python -c"),
    ("curl -sS https://example.org/x.tar.gz | tar xz", "network", "curl"),
    ("wget -q https://example.org/x", "network", "wget"),
    ("ssh host 'pytest'", "network", "ssh"),
    ("true && echo done", "other", "true"),
    ("cd /srv", "other", "cd"),
    ("./start.sh --port 80", "other", "start.sh"),
    ("eval 'git log -1'", "git", "git log"),
    ('echo "unbalanced && pytest', "other", "echo"),
    ("pytest 'unbalanced", "tests", "pytest"),
    ("# only a comment about pytest", "other", "bash"),
    ("VERSION=$(git describe --tags) make", "build", "make"),
    ("if [ -f tox.ini ]; then tox; fi", "tests", "tox"),
    ("(cd src && make test)", "tests", "make test"),
    ("strace -o log -f git fetch", "git", "git fetch"),
]

# What the kernel sees where no shell is in between: (argv, category, tool, summary).
VECTORS: list[tuple[list[str], str, str, str]] = [
    (["/usr/bin/git", "diff"], "git", "git", "git diff"),
    (["/usr/bin/python3", "/usr/local/bin/pytest", "-q"], "tests", "pytest", "pytest"),
    (["bash", "/root/.pyenv/shims/python3", "-c", "print(1)"], "python", "python3", "python3 -c"),
    (["/usr/bin/env", "bash", "/root/.pyenv/shims/pip", "install", "x"], "install", "pip", "pip install"),
    (["env", "-u", "HOME", "A=1", "python", "-m", "pytest"], "tests", "python", "python -m pytest"),
    (["node", "/usr/lib/node_modules/npm/bin/npm-cli.js", "install"], "install", "npm", "npm install"),
    (["/bin/sh", "-ec", "exec pytest"], "tests", "pytest", "pytest"),
    (["-bash", "-l"], "other", "bash", "bash"),
    (["bash", "-o", "pipefail", "-c", "pytest | tee log"], "tests", "pytest", "pytest"),
    (
        ["bash", "-c", "-l", "source snap && eval 'git status' \\< /dev/null && pwd -P >| /tmp/cwd"],
        "git",
        "git",
        "git status",
    ),
    (["su", "agent", "-c", "pytest"], "tests", "pytest", "pytest"),
    (["sudo", "-u", "agent", "--", "make"], "build", "make", "make"),
    (["tidegate", "exec", "--tool", "Bash", "--", "pytest"], "tests", "pytest", "pytest"),
    (["python3", "deploy_secret_customer.py"], "python", "python3", "python3"),
    (["git"], "git", "git", "git"),
    (["git", "my-secret-alias"], "git", "git", "git"),
    ([], "other", "", ""),
    ([""], "other", "", ""),
    (["A=1"], "other", "", ""),
    (["bash", "-c", ""], "other", "bash", "bash"),
    (["python3", "-m"], "python", "python3", "python3 -m"),
    (["timeout"], "other", "timeout", "timeout"),
]


@pytest.fixture(scope="module")
def table() -> Table:
    return load()


@pytest.mark.parametrize(("script", "category", "summary"), SCRIPTS, ids=[script[:40] for script, _, _ in SCRIPTS])
def test_scripts_that_a_shell_runs(table: Table, script: str, category: str, summary: str) -> None:
    found = classify(["/bin/bash", "-lc", script], table)
    assert (found.category, found.summary) == (category, summary)


@pytest.mark.parametrize(("argv", "category", "tool", "summary"), VECTORS, ids=[" ".join(v[0])[:40] for v in VECTORS])
def test_command_lines_as_the_kernel_has_them(
    table: Table, argv: list[str], category: str, tool: str, summary: str
) -> None:
    found = classify(argv, table)
    assert (found.category, found.tool, found.summary) == (category, tool, summary)


def test_a_command_line_cut_off_by_the_kernel_is_read_as_far_as_it_goes(table: Table) -> None:
    whole = "cd /srv/app && python -m pytest tests -k 'a or b' | tail -5"
    for length in range(len("cd /srv/app && python -m pytest"), len(whole)):
        assert classify(["bash", "-c", whole[:length]], table).category == "tests"


def test_arguments_are_not_shown(table: Table) -> None:
    for argv in (
        ["curl", "-H", "Authorization: Bearer sekrit", "https://sekrit"],
        ["git", "commit", "-m", "sekrit"],
        ["bash", "-c", "TOKEN=sekrit pytest -k sekrit; echo sekrit > sekrit"],
        ["python", "-m", "sekrit"],
        ["python", "sekrit.py", "install"],
        ["python", "test_sekrit.py"],
        ["make", "sekrit"],
        ["pip", "install", "sekrit"],
    ):
        assert "sekrit" not in classify(argv, table).summary


WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(HOSTILE),
    st.sampled_from(
        [
            "bash",
            "sh",
            "-c",
            "-lc",
            "python",
            "-m",
            "-c",
            "pytest",
            "git",
            "diff",
            "sudo",
            "env",
            "timeout",
            "60",
            "xargs",
            "eval",
            "&&",
            "|",
            ";",
            "$(",
            ")",
            "`",
            "'",
            '"',
            "\\",
            "<<",
            "EOF",
            "\n",
            ">",
            "-i",
            "--",
            "su",
            "{",
            "[",
        ]
    ),
)


@given(st.lists(WORDS, max_size=12), st.booleans())
def test_nothing_makes_it_raise(words: list[str], joined: bool) -> None:
    argv = ["bash", "-c", " ".join(words)] if joined else words
    found = classify(argv, load_once())
    assert found.category in load_once().rank
    for text, limit in ((found.tool, 64), (found.summary, 96)):
        assert len(text) <= limit
        assert text.isprintable()
        text.encode("utf-8")  # no lone surrogates


_LOADED: list[Table] = []


def load_once() -> Table:
    if not _LOADED:
        _LOADED.append(load())
    return _LOADED[0]


@pytest.mark.parametrize(
    "script",
    [
        "(" * 10_000,
        "sudo " * 5000,
        "eval " * 5000,
        "$(" * 5000,
        "'" * 9999,
        '"\\' * 5000,
        "<<E\n" * 3000,
        "a=" * 9000,
        "bash -c " * 3000,
    ],
    ids=lambda script: script[:8],
)
@pytest.mark.timeout(10)
def test_long_and_nested_scripts_are_bounded(table: Table, script: str) -> None:
    classify(["bash", "-c", script], table)
    classify(script.split(" "), table)


def test_segments_of_a_script() -> None:
    script = 'A=1 x "a b" c\\ d | y <in >out 2>&1 && (z; w) # v\n u <<E\n pytest\nE\n t 2>log'
    found = [(segment.words, segment.writes) for segment in segments(script)]
    assert found == [
        (["x", "a b", "c d"], False),
        (["y"], True),
        (["z"], False),
        (["w"], False),
        (["u"], False),
        (["t"], False),
    ]


# --- the table -------------------------------------------------------------------------------------------------------

PRIORITY = 'priority = ["tests","install","build","network","python","git","edit","search","read","other"]\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_own_table_replaces_ours(tmp_path: Path) -> None:
    path = written(tmp_path, PRIORITY + '[[rule]]\ncategory = "build"\nprograms = ["pytest", "my*"]\n')
    table = load(path)
    assert classify(["pytest"], table).category == "build"
    assert classify(["mytool"], table).category == "build"
    assert classify(["git", "diff"], table).category == "other"


def test_the_variable_names_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, PRIORITY + '[[rule]]\ncategory = "read"\nprograms = ["pytest"]\n')
    monkeypatch.setenv("TIDEGATE_CATEGORIES", str(path))
    configured_table.cache_clear()
    try:
        assert classify(["pytest"]).category == "read"
        path.write_text("priority = 3")
        configured_table.cache_clear()
        with pytest.raises(TableError, match=r"mine\.toml"):
            configured_table()
    finally:
        configured_table.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("priority = [", "not TOML"),
        (PRIORITY + '[[rule]]\ncategory = "games"\nprograms = ["x"]', r"rule 1 \(of 'x'\): Invalid enum value 'games'"),
        (
            PRIORITY + '[[rule]]\ncategory = "git"\nprograms = ["a"]\n[[rule]]\ncategory = "git"\nprograms = []',
            "rule 2",
        ),
        (PRIORITY + '[[rule]]\ncategory = "git"\nprogram = ["a"]', r"rule 1 \(of '\?'\)"),
        (PRIORITY + '[[rule]]\ncategory = "git"\nprograms = ["a"]\nwrods = ["b"]', "wrods"),
        (PRIORITY + '[[wrapper]]\nprograms = ["a"]\narguments = "x"', r"wrapper 1 \(of 'a'\).*arguments"),
        (PRIORITY + 'rule = "x"', r"\[\[rule\]\]"),
        ('priority = ["tests"]', "priority lacks install, build"),
        ('priority = ["tests", "games"]', "priority"),
        ("", "priority"),
    ],
)
def test_a_wrong_table_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TableError, match=message) as error:
        load(path)
    assert str(error.value).startswith(str(path))


def test_a_table_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TableError, match="not UTF-8 at byte 0"):
        load(tmp_path / "bad.toml")


# --- real command lines ----------------------------------------------------------------------------------------------

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "agentcgroup"


def recorded_commands() -> list[str]:
    commands: list[str] = []
    for path in sorted(TRACES.rglob("tool_calls.json")):
        for call in json.loads(path.read_text(encoding="utf-8")):
            command = (call.get("input") or {}).get("command")
            if call.get("tool") == "Bash" and command:
                commands.append(command)
    return commands


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not on this machine")
def test_recorded_command_lines_are_recognised(table: Table) -> None:
    commands = recorded_commands()
    assert len(commands) >= 300
    found = Counter(classify(["bash", "-c", command], table).category for command in commands)
    # Measured on 320 commands of 17 runs: none is `other`; tests, python, search and git are most of them.
    assert found["other"] <= 0.02 * len(commands)
    assert found["tests"] >= 0.3 * len(commands)
    assert len(found) >= 7
    # Cut at 512 bytes, as the kernel hands them over, the answer is nearly always the same.
    same = sum(
        classify(["bash", "-c", c.encode()[:500].decode(errors="ignore")], table).category
        == classify(["bash", "-c", c], table).category
        for c in commands
    )
    assert same >= 0.97 * len(commands)
