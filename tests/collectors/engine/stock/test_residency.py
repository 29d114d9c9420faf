"""The table of blocks, against hand-made stories and against a model that counts anew each time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.engine.stock.events import Cleared, Event, Removed, Stored
from tidegate_collectors.engine.stock.residency import Change, Residency


def put(*hashes: int, session: str | None = "s", medium: str = "GPU", group: int = 0) -> Stored:
    return Stored(hashes, 32, medium, group, session)


def take(*hashes: int, medium: str = "GPU") -> Removed:
    return Removed(hashes, medium, 0)


def test_blocks_count_for_the_session_that_stored_them_first() -> None:
    table = Residency()

    assert table.apply((put(1, 2, session="a"),)) == [Change("a", "gone", "device_cached", "computed", 2)]
    assert table.apply((put(2, 3, session="b"),)) == [Change("b", "gone", "device_cached", "computed", 1)]
    assert (table.of("a"), table.of("b"), table.device_blocks) == ({"device_cached": 2}, {"device_cached": 1}, 4)


def test_a_block_with_two_copies_is_there_until_the_last_is_removed() -> None:
    table = Residency()
    table.apply((put(1, session="a"), put(1, session="b")))

    assert table.apply((take(1),)) == []
    assert table.apply((take(1),)) == [Change("a", "device_cached", "gone", "lru", 1)]
    assert (table.of("a"), table.device_blocks) == ({"gone": 1}, 0)


def test_a_block_that_comes_back_is_no_longer_missing() -> None:
    table = Residency()
    table.apply((put(1, 2, session="a"), take(1, 2)))
    assert table.of("a") == {"gone": 2}

    table.apply((put(1, session="a"), put(2, session="b")))
    assert (table.of("a"), table.of("b")) == ({"device_cached": 1}, {"device_cached": 1})


def test_the_host_tier() -> None:
    table = Residency()
    table.apply((put(1, 2),))

    assert table.apply((put(1, 2, session=None, medium="CPU"),)) == [
        Change("s", "device_cached", "device_and_host", "computed", 2)
    ]
    assert table.apply((take(1, 2),)) == [Change("s", "device_and_host", "host", "lru", 2)]
    assert table.apply((put(1),)) == [Change("s", "host", "device_and_host", "restored", 1)]
    assert table.apply((take(1, 2, medium="CPU"),)) == [
        Change("s", "device_and_host", "device_cached", "host_evicted", 1),
        Change("s", "host", "gone", "host_evicted", 1),
    ]
    assert (table.of("s"), table.device_blocks, table.host_blocks) == ({"device_cached": 1, "gone": 1}, 1, 0)


def test_a_reset_empties_the_device_and_not_the_host() -> None:
    table = Residency()
    table.apply((put(1, 2), put(2, medium="CPU"), put(9, session=None)))

    assert sorted(table.apply((Cleared(),)), key=str) == [
        Change("s", "device_and_host", "host", "reset", 1),
        Change("s", "device_cached", "gone", "reset", 1),
    ]
    assert (table.device_blocks, table.host_blocks) == (0, 1)


def test_blocks_of_nobody_count_in_the_pool_only() -> None:
    table = Residency()

    assert table.apply((put(1, 2, session=None),)) == []
    assert (table.sessions, table.device_blocks) == ((), 2)


def test_groups_are_different_blocks() -> None:
    table = Residency()
    table.apply((put(1), put(1, group=1)))

    table.apply((take(1),))
    assert (table.of("s"), table.device_blocks) == ({"device_cached": 1, "gone": 1}, 1)


def test_what_was_stored_before_we_listened_is_not_missed() -> None:
    table = Residency()

    assert table.apply((take(5, 6), take(7, medium="CPU"))) == []
    assert (table.device_blocks, table.host_blocks) == (0, 0)


def test_forgetting_says_so() -> None:
    table = Residency()
    table.complete = True
    table.apply((put(1, 2), take(2)))

    assert table.forget() == [Change("s", "device_cached", "gone", "forgotten", 1)]
    assert (len(table), table.sessions, table.device_blocks, table.complete) == (0, (), 0, False)


def test_it_is_bounded() -> None:
    table = Residency(max_blocks=100, max_gone=50, max_sessions=10)
    table.complete = True
    for number in range(1000):
        table.apply((put(2 * number, 2 * number + 1, session=f"s{number}"),))

    assert len(table) == 100 and len(table.sessions) == 10 and table.device_blocks == 100
    assert not table.complete
    assert sum(table.of(name).get("gone", 0) for name in table.sessions) <= 50


def test_ten_thousand_sessions_are_told_truly_and_the_oldest_given_up() -> None:
    table = Residency()
    told: Counter[str] = Counter()
    for number in range(10_000):
        for change in table.apply((put(number, session=f"s{number}"),)):
            told[change.session] += change.blocks if change.to == "device_cached" else -change.blocks

    assert len(table.sessions) == 4096 and table.device_blocks == 10_000
    assert {name for name, count in told.items() if count} == set(table.sessions)
    assert [change.cause for change in table.apply((take(0),))] == []  # of one that was given up
    assert table.device_blocks == 9_999


def test_one_session_with_many_blocks_is_bounded() -> None:
    table = Residency(max_blocks=100, max_gone=50)
    for number in range(1000):
        table.apply((put(number),))

    assert table.of("s") == {"device_cached": 100, "gone": 50}


EVENTS = st.one_of(
    st.builds(
        lambda hashes, session, medium: Stored(tuple(hashes), 32, medium, 0, session),
        st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
        st.sampled_from(["a", "b", None]),
        st.sampled_from(["GPU", "GPU", "CPU"]),
    ),
    st.builds(
        lambda hashes, medium: Removed(tuple(hashes), medium, 0),
        st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
        st.sampled_from(["GPU", "GPU", "CPU"]),
    ),
    st.just(Cleared()),
)


@given(st.lists(EVENTS, max_size=60))
@settings(max_examples=200)
def test_it_agrees_with_counting_anew(events: list[Event]) -> None:
    table = Residency()
    owner: dict[int, str | None] = {}
    copies: Counter[int] = Counter()
    host: set[int] = set()
    states: Counter[tuple[str, str]] = Counter()

    for event in events:
        for change in table.apply((event,)):
            states[change.session, change.from_] -= change.blocks
            states[change.session, change.to] += change.blocks
        for hash_ in getattr(event, "hashes", ()):
            assert isinstance(hash_, int)
            if isinstance(event, Stored):
                if not copies[hash_] and hash_ not in host:
                    owner[hash_] = event.session
                if event.medium == "GPU":
                    copies[hash_] += 1
                else:
                    host.add(hash_)
            elif isinstance(event, Removed) and event.medium == "GPU":
                copies[hash_] = max(0, copies[hash_] - 1)
            elif isinstance(event, Removed):
                host.discard(hash_)
        if isinstance(event, Cleared):
            copies.clear()

        assert table.device_blocks == sum(copies.values()) and table.host_blocks == len(host)
        expected: Counter[tuple[str, str]] = Counter()
        for hash_, session in owner.items():
            device, kept = copies[hash_] > 0, hash_ in host
            state = "device_and_host" if device and kept else "device_cached" if device else "host" if kept else "gone"
            if session is not None:
                expected[session, state] += 1
        for session in ("a", "b"):
            for state in ("device_cached", "device_and_host", "host", "gone"):
                assert table.of(session).get(state, 0) == expected[session, state], (session, state)
                if state != "gone":
                    assert states[session, state] == expected[session, state]
