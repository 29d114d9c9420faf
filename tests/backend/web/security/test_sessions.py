"""Login sessions and tokens by themselves."""

from __future__ import annotations

from pathlib import Path

from tidegate.web.security.sessions import LIFETIME_S, MOST, SessionStore
from tidegate.web.security.tokens import FailureLimit, LoginToken


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_expiry_slides() -> None:
    clock = Clock()
    store = SessionStore(clock=clock)
    key = store.create()
    clock.now += LIFETIME_S - 1
    assert store.check(key)
    clock.now += LIFETIME_S - 1
    assert store.check(key)
    clock.now += LIFETIME_S + 1
    assert not store.check(key)
    assert not store.check("")


def test_sessions_survive_a_restart_and_the_file_has_no_key(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    key = SessionStore(path).create()
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert SessionStore(path).check(key)
    assert not SessionStore(path).check(key + "x")


def test_expired_sessions_do_not_come_back_from_the_file(tmp_path: Path) -> None:
    clock = Clock()
    key = SessionStore(tmp_path / "s", clock).create()
    clock.now += LIFETIME_S + 1
    assert not SessionStore(tmp_path / "s", clock).check(key)


def test_two_backends_share_the_file(tmp_path: Path) -> None:
    one, other = SessionStore(tmp_path / "s"), SessionStore(tmp_path / "s")
    first, second = one.create(), other.create()
    assert one.check(second)
    assert other.check(first)


def test_number_of_sessions_is_bounded() -> None:
    clock = Clock()
    store = SessionStore(clock=clock)
    keys = []
    for _ in range(MOST + 5):
        clock.now += 1
        keys.append(store.create())
    assert len(store) == MOST
    assert not store.check(keys[0])
    assert store.check(keys[-1])


def test_a_broken_file_costs_only_the_logins(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"not json")
    store = SessionStore(path)
    assert store.check(store.create())


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "s").symlink_to(target)
    SessionStore(tmp_path / "s").create()
    assert target.read_text() == "precious"


def test_token_is_long_and_single() -> None:
    token = LoginToken()
    url = token.publish("::1", 6456)
    base, _, value = url.partition("?token=")
    assert base == "http://[::1]:6456/login"
    assert len(value) >= 43
    assert not token.use("")
    assert not token.use("\ud800")
    assert token.use(value)
    assert not token.use(value)


def test_failures_count_within_the_window() -> None:
    clock = Clock()
    limit = FailureLimit(most=3, window_s=60.0, clock=clock)
    assert [limit.record() for _ in range(4)] == [False, False, False, True]
    clock.now += 61
    assert not limit.record()
