"""Session ids for conversations that name none: by the beginning that stays the same. Pure but for the randomness.

A table in memory, bounded, from a keyed hash of a conversation's stable beginning (and the API key that came with it)
to the conversations that began so. The ids themselves are random: nothing can be learnt from one about a prompt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from .asked import Asked

MAX_CONVERSATIONS: Final = 4096
MAX_ALIKE: Final = 64
"""Conversations that began alike and are remembered."""

_PREVIOUS: Final = 4096


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation: how much of it was seen, and a digest of that. ``open``: requests without their answer yet."""

    id: str
    key: bytes
    length: int = 0
    digest: bytes = b""
    open: int = 0
    waits_for: set[str] = field(default_factory=set)


class SessionTable:
    """Conversations by their beginning; the ones that were longest not used leave first."""

    def __init__(self, max_conversations: int = MAX_CONVERSATIONS, max_alike: int = MAX_ALIKE) -> None:
        self._key: Final = secrets.token_bytes(32)
        self._max = max_conversations
        self._max_alike = max_alike
        self._used: OrderedDict[str, Conversation] = OrderedDict()
        self._alike: dict[bytes, list[Conversation]] = {}
        self._previous: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def find(self, asked: Asked, credential: bytes, api: str) -> Conversation:
        """The conversation that this request goes on with, or a new one. Call :meth:`closed` when it is answered.

        Two clients whose conversations began alike are told apart where the request cannot be the continuation: it
        does not begin with what was seen, or says the same as one that is not answered yet.
        """
        key = self._hash(api.encode(), credential, asked.stem)
        length = _measure(asked)
        alike = self._alike.get(key, [])
        digests = self._digests(asked, {length, *(known.length for known in alike if known.length <= length)})
        found = self._by_previous(asked) or self._by_content(asked, alike, digests)
        if found is None:
            found = self._add(Conversation(f"gw-{secrets.token_hex(6)}", key))
        self._used.move_to_end(found.id)
        alike = self._alike[found.key]
        alike.remove(found)
        alike.append(found)
        found.length, found.digest = length, digests[length]
        found.waits_for -= {result.id for result in asked.results}
        found.open += 1
        return found

    def closed(self, conversation: Conversation, tool_ids: list[str], answer_id: str | None) -> None:
        """A request of it was answered, or broke off.

        Args:
            conversation: it.
            tool_ids: ids of the tool calls that the answer asks for.
            answer_id: the answer's, by which a next request may refer to it.
        """
        conversation.open = max(0, conversation.open - 1)
        conversation.waits_for = set(tool_ids[:64])
        if answer_id is not None:
            self._previous[answer_id] = conversation.id
            while len(self._previous) > _PREVIOUS:
                self._previous.popitem(last=False)

    def _by_previous(self, asked: Asked) -> Conversation | None:
        if asked.previous is None:
            return None
        return self._used.get(self._previous.get(asked.previous, ""))

    def _by_content(self, asked: Asked, alike: list[Conversation], digests: dict[int, bytes]) -> Conversation | None:
        newest_first = [known for known in reversed(alike) if not known.open]
        results = {result.id for result in asked.results}
        waiting = [known for known in newest_first if known.waits_for & results]
        if len(waiting) == 1:
            return waiting[0]
        candidates = waiting or newest_first
        for known in sorted(candidates, key=lambda known: -known.length):
            if known.digest == digests.get(known.length):
                return known
        if not asked.history:  # it begins, and those that are known have gone on
            return None
        # The agent shortened its history. Then the one that spoke last and waits for no answer is meant.
        return next((known for known in candidates if known.length > 1), None)

    def _add(self, new: Conversation) -> Conversation:
        self._used[new.id] = new
        alike = self._alike.setdefault(new.key, [])
        alike.append(new)
        if len(alike) > self._max_alike:
            self._forget(alike[0])
        if len(self._used) > self._max:
            self._forget(next(iter(self._used.values())))
        return new

    def _forget(self, known: Conversation) -> None:
        self._used.pop(known.id, None)
        alike = self._alike[known.key]
        alike.remove(known)
        if not alike:
            del self._alike[known.key]

    def _digests(self, asked: Asked, lengths: set[int]) -> dict[int, bytes]:
        """Digests of the first so many messages (or bytes of a prompt), in one pass."""
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        found, done = {}, 0
        for length in sorted(lengths):
            if asked.text is not None:
                digest.update(asked.text[done:length])
            else:
                for unit in asked.units[done:length]:
                    digest.update(len(unit).to_bytes(8, "big"))
                    digest.update(unit)
            done = length
            found[length] = digest.copy().digest()
        return found

    def _hash(self, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()


def _measure(asked: Asked) -> int:
    return len(asked.units) if asked.text is None else len(asked.text)
