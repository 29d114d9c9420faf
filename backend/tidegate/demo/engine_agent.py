"""One agent that asks a real engine what to do: the model chooses tools, which are run, and gets their results.

Run as ``python -m tidegate.demo.engine_agent --role ROLE --work DIR --engine URL``, normally by
:mod:`.engine_conductor` under ``tidegate run``. It takes ``OPENAI_BASE_URL`` where that is set (a gateway), and names
its session by the header ``X-Session-ID`` where it talks to the engine itself.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.demo import chat, engine_tools, scripts
from tidegate.demo.agent import Agent, stop_on_signal
from tidegate.demo.workshop import MIB

SYSTEM = (
    "You are a careful engineer. You work in a repository of your own with the tools that are listed. Call one tool at "
    "a time, read its result before you go on, and prefer the smallest change that does the job. Do not repeat a "
    "command that has failed in the same way. When nothing is left to do, say in one sentence what was done and what "
    "was not. "
)
TASKS = {
    "fix": "The parser in parser_.py refuses lines without a colon. Find out whether its tests say so, and mend it.",
    "build": "Build the program and load its tables; one of the suites has never passed. Find out which one, and why.",
    "survey": "Survey the package: which of its modules return a value that nobody uses, and how large are its tables?",
}

_RESULT_CHARS = 260
_ANSWER_TOKENS = 60
_CALL_TOKENS = 200
_MAX_CONTEXT_CHARS = 2400
"""A token of the tiny model is a byte; with the answer this stays below what the engine takes."""
_TURNS_PER_ROUND = 8
_RETRIES = 3
_WHITESPACE = (" ", "\n", "\t", "\r")
_END = "<end>"


class EngineAgent(Agent):
    """An agent with a conversation.

    Args:
        engine: where to ask.
        bias: vLLM's ``logit_bias``.
        The other arguments are those of an agent.
    """

    def __init__(
        self, role: str, work: Path, *, seed: int, pace: float, burst_bytes: int, engine: chat.Engine,
        bias: dict[str, float],
    ) -> None:  # fmt: skip
        super().__init__(role, work, seed=seed, pace=pace, burst_bytes=burst_bytes)
        self.turns = 0
        self.tool_calls = 0
        self._seed = seed
        self._engine = engine
        self._bias = bias
        self._schemas = [engine_tools.TOOLS[name].schema(name) for name in engine_tools.OFFERS[role]]
        listing = " ".join(f"package/module_{number:03}.py" for number in self.rng.sample(range(120), 12))
        self._task = f"{TASKS[role]} The modules that were changed last: {listing}."
        self._messages: list[chat.Message] = []
        self._compact("")

    def play(self, number: int, until_s: float = math.inf) -> None:
        """One round: the person asks, the model calls tools, and says at the end what was done.

        After ``until_s``, of the monotonic clock, no further tool is asked for.
        """
        self._messages.append({"role": "user", "content": f"Round {number}: go on."})
        for _ in range(_TURNS_PER_ROUND):
            if time.monotonic() > until_s:
                return
            answer = self._turn("required", _CALL_TOKENS)
            self._messages.append(_told(answer))
            for call in answer.calls:
                self._messages.append(
                    {"role": "tool", "tool_call_id": call.id, "content": self._run(call.name, _value(call))}
                )
        self.say()
        self.think(0.5, 2.5)

    def say(self, *, last: bool = False) -> None:
        """A turn without a tool; ``last`` tells the engine that nothing follows."""
        answer = self._turn("none", _ANSWER_TOKENS, {"kv_last": "1"} if last else None)
        self._messages.append({"role": "assistant", "content": answer.text[:_RESULT_CHARS]})

    def _turn(self, choice: str, most_tokens: int, extra: dict[str, str] | None = None) -> chat.Answer:
        if sum(len(str(message.get("content") or "")) + 60 for message in self._messages) > _MAX_CONTEXT_CHARS:
            self._compact(f"{self.tool_calls} tools were called so far.")
        body: dict[str, Any] = {
            "model": "tiny", "messages": self._messages, "tools": self._schemas, "tool_choice": choice,
            "max_tokens": most_tokens, "temperature": 1.0, "seed": self._seed * 100_000 + self.turns,
            "logit_bias": self._bias,
        }  # fmt: skip
        if extra:
            body["vllm_xargs"] = extra
        self.turns += 1
        for left in reversed(range(_RETRIES)):
            try:
                answer = self._engine.ask(body)
            except chat.ChatError as error:
                if not left or 400 <= error.status < 500:
                    raise
                time.sleep(0.5)
            else:
                self._report_turn(answer)
                return answer
        raise AssertionError("unreachable")

    def _run(self, name: str, value: str) -> str:
        """Run the tool that the model asks for. Returns what the conversation gets of it, bounded."""
        tool = engine_tools.TOOLS.get(name)
        if tool is None or value not in tool.values:
            return "there is no such tool"
        self.tool_calls += 1
        run = tool.run(self, value)
        with tempfile.TemporaryFile(dir=self.work) as output:
            code = self.call(*run.command, cwd=run.cwd, hint=run.hint, output=output)
            size = output.tell()
            output.seek(max(0, size - _RESULT_CHARS))
            text = output.read(_RESULT_CHARS).decode("ascii", "replace").replace("\ufffd", "?")
        return f"exit {code}\n{text}"

    def _compact(self, summary: str) -> None:
        """The conversation begins again with what matters, as agents do whose context is full."""
        asked = f"{self._task} {summary}".strip()
        self._messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]

    def _report_turn(self, answer: chat.Answer) -> None:
        what = ", ".join(call.name for call in answer.calls) or answer.finish
        tokens = f"{answer.prompt_tokens} tokens, {answer.cached_tokens} found"
        at = time.monotonic() - self.started_s
        print(f"{at:6.1f} s  {self.role:<10} turn {self.turns:<3} {tokens:<28} -> {what}", flush=True)


def _value(call: chat.ToolCall) -> str:
    tool = engine_tools.TOOLS.get(call.name)
    return call.value(tool.parameter) if tool is not None else ""


def _told(answer: chat.Answer) -> chat.Message:
    told: chat.Message = {"role": "assistant", "content": answer.text[:_RESULT_CHARS]}
    if answer.calls:
        told["tool_calls"] = [call.told() for call in answer.calls]
    return told


def _where(engine_url: str) -> chat.Engine:
    """The gateway where there is one, else the engine itself, which must be told the session."""
    gateway = os.environ.get("OPENAI_BASE_URL")
    if gateway:
        return chat.Engine(gateway)
    session = os.environ.get("TIDEGATE_SESSION")
    return chat.Engine(f"{engine_url.rstrip('/')}/v1", {"X-Session-ID": session} if session else {})


def _bias(engine_url: str) -> dict[str, float]:
    """A model with random weights would put whitespace between the words of a call for ever, and call without end."""
    *blanks, end = chat.tokens_of(engine_url, [*_WHITESPACE, _END])
    return {str(token): -100.0 for token in blanks} | {str(end): 4.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Play one role for a number of rounds or seconds. Returns 0; 1 when the engine refused, which is said."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.demo.engine_agent")
    parser.add_argument("--role", choices=sorted(scripts.ROLES), required=True)
    parser.add_argument("--work", type=Path, required=True, help="directory of this agent; must not exist yet")
    parser.add_argument("--engine", required=True, metavar="URL", help="the engine, without /v1")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="go on for so long instead of counting rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--burst-mb", type=int, default=400)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, stop_on_signal)
    arguments.work.mkdir(parents=True)
    agent: EngineAgent | None = None
    try:
        agent = EngineAgent(
            arguments.role, arguments.work, seed=arguments.seed, pace=arguments.pace,
            burst_bytes=arguments.burst_mb * MIB, engine=_where(arguments.engine), bias=_bias(arguments.engine),
        )  # fmt: skip
        engine_tools.prepare(agent)
        until_s = math.inf if arguments.seconds is None else time.monotonic() + arguments.seconds
        done = 0
        while (done < arguments.rounds) if arguments.seconds is None else (time.monotonic() < until_s):
            agent.play(done, until_s)
            done += 1
        agent.say(last=True)
    except KeyboardInterrupt:
        return 130
    except chat.ChatError as error:
        print(f"{arguments.role}: the engine did not answer: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        if agent is not None:
            agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
