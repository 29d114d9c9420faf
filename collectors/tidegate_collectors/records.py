"""The record vocabulary: what every plane says, one JSON object a line.

A record is one observation or one action. All records share the envelope of :class:`Record`; the ``type`` field
selects the struct, so decoding validates. Fields that are not set are left out of the line.

Numbers carry their unit in the name: ``_us`` microseconds, ``_s`` seconds, ``_bytes``, ``_tokens``, ``_blocks``.
Times (``t``) are integer microseconds since the Unix epoch, UTC, which JavaScript holds exactly.

``docs/records.md`` is generated from this module (``python -m tidegate_collectors.records_doc``); the ``Annotated``
texts below are its source and a test keeps the two equal.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

VERSION: Final = 1
"""The major version of the line format; a line with another one is refused."""

MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is refused: it is no record of ours."""

Priority = Literal["high", "normal", "low"]
Plane = Literal["kernel", "engine", "context"]
Category = Literal["tests", "install", "build", "git", "search", "read", "edit", "python", "network", "other"]
Boundary = Literal["wrapper", "fork", "exec", "hook", "gateway", "import"]
MatchConfidence = Literal["exact", "likely", "none"]
KvAction = Literal["KEEP", "PIN", "OFFLOAD", "DROP"]
KvState = Literal["device_active", "device_cached", "device_pinned", "host", "device_and_host", "gone"]
KvMode = Literal["off", "observe", "enforce"]
TurnWitness = Literal["gateway", "engine", "import"]
ServedFrom = Literal["device", "host", "recompute", "mixed", "none"]

_T = TypeVar("_T")


def _doc(text: str) -> Meta:
    return Meta(description=text)


Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Micros = Annotated[int, Meta(ge=0)]


class Record(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """The envelope. ``v``, ``seq``, ``src`` and ``host`` are stamped by the sender (see ``link.Stamper``)."""

    v: Annotated[int, _doc("major version of the line format, 1")] = 0
    seq: Annotated[int, _doc("gap-free integer within one src, from 0")] = -1
    src: Annotated[str, _doc("the sender, unique for each start of a collector")] = ""
    t: Annotated[int, _doc("microseconds since the Unix epoch, UTC")]
    host: Annotated[str, _doc("host name")] = ""
    session: Annotated[str | None, _doc("session id, the same on every plane")] = None
    turn: Annotated[str | None, _doc("turn id")] = None
    call: Annotated[str | None, _doc("call id, unique within its session")] = None
    req: Annotated[str | None, _doc("engine request id")] = None


# --- what a run is -----------------------------------------------------------------------------------------------


class HostInfo(Struct, kw_only=True, omit_defaults=True):
    kernel: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    boot_id: str = ""


class RunMeta(Record, kw_only=True, tag="run.meta"):
    """Opens a run: what was observed, by whom, on which machine."""

    run: Annotated[str, _doc("run id")]
    title: Annotated[str, _doc("a name for people")] = ""
    source: Annotated[Literal["live", "recorded", "imported", "modelled"], _doc("how the records came about")] = "live"
    machine: Annotated[HostInfo | None, _doc("kernel release, logical CPUs, bytes of memory, boot id")] = None
    engine: Annotated[dict[str, Any] | None, _doc("name, version, build of the inference engine")] = None
    model: Annotated[
        dict[str, Any] | None, _doc("id, layers, kv_heads, head_dim, kv_dtype, max_tokens of the model")
    ] = None
    kv_bytes_per_token: Annotated[int | None, _doc("bytes of KV cache a token takes, all layers")] = None
    block_tokens: Annotated[int | None, _doc("tokens in one KV block")] = None
    pool_blocks: Annotated[int | None, _doc("KV blocks on the device")] = None
    host_tier_bytes: Annotated[int | None, _doc("capacity of the host tier")] = None
    policies: Annotated[list[dict[str, Any]], _doc("policies in force at the start")] = []
    seed: Annotated[int | None, _doc("seed of a scripted run")] = None
    task_set: Annotated[str | None, _doc("name of the set of tasks")] = None
    arm: Annotated[str | None, _doc("arm of a comparison")] = None
    extract: Annotated[
        dict[str, Any] | None, _doc("what was taken out of a larger run, so that holes in seq are meant: session")
    ] = None


class RunEnd(Record, kw_only=True, tag="run.end"):
    """Closes a run."""

    clean: Annotated[bool, _doc("true when the writer ended by itself")] = False
    last_seq: Annotated[dict[str, int], _doc("highest seq by src")] = {}
    dropped: Annotated[int, _doc("records known to be lost")] = 0


class Capability(Record, kw_only=True, tag="capability"):
    """One ability of this host or engine, found by trying it."""

    plane: Annotated[Plane, _doc("who has it")] = "kernel"
    name: Annotated[str, _doc("stable name, for example tp_btf.rss_stat")]
    available: Annotated[bool, _doc("whether the trial worked")]
    reason: Annotated[str, _doc("what the trial said, and what to do about it")] = ""


# --- sessions, turns, calls ----------------------------------------------------------------------------------------


class SessionStart(Record, kw_only=True, tag="session.start"):
    """An agent's run begins."""

    agent: Annotated[str, _doc("program that was launched, its base name")] = ""
    title: Annotated[str, _doc("a name for people")] = ""
    priority: Annotated[Priority, _doc("who yields first under pressure")] = "normal"
    budget_bytes: Annotated[int | None, _doc("memory the session may take; none when not set")] = None
    cgroup: Annotated[str | None, _doc("path below the collector's root; none when the host has no cgroups")] = None
    pid: Annotated[int | None, _doc("process that is the session's root")] = None


class SessionEnd(Record, kw_only=True, tag="session.end"):
    """The session's root process is gone."""

    reason: Annotated[
        Literal["finished", "answered", "overflow_400", "turn_cap", "oom", "killed", "error", "cancelled"],
        _doc("why it ended; finished: exit 0, error: another exit code, killed: a signal"),
    ] = "finished"
    success: Annotated[bool | None, _doc("whether the task was solved, where a judge said so")] = None
    score: Annotated[float | None, _doc("score of a judge")] = None
    exit_code: Annotated[int | None, _doc("exit code of the root process")] = None
    signal: Annotated[int | None, _doc("signal that ended the root process")] = None
    lost: Annotated[
        bool, _doc("the collector stopped while the session ran; when and how it ended is unknown, reason says nothing")
    ] = False


class TurnStart(Record, kw_only=True, tag="turn.start"):
    """A request for a session came. The gateway and the engine may both tell of one turn; what they know is merged."""

    by: Annotated[TurnWitness, _doc("who saw it: gateway as the agent sees it, engine inside the scheduler")] = "engine"
    prompt_tokens: Annotated[Count | None, _doc("tokens of the prompt; none before somebody has counted them")] = None
    messages: Annotated[Count | None, _doc("messages of the conversation so far")] = None
    model: Annotated[str | None, _doc("model that was asked for")] = None
    api: Annotated[
        str | None,
        _doc("openai.chat, openai.completions, openai.responses or anthropic.messages; none inside the engine"),
    ] = None
    session_from: Annotated[
        Literal["launcher", "header", "body", "prefix"] | None,
        _doc("how the session id was found; prefix: derived from the stable beginning of the conversation"),
    ] = None


class TurnFirstToken(Record, kw_only=True, tag="turn.first_token"):
    """The first token came back."""

    by: Annotated[TurnWitness, _doc("who saw it")] = "engine"
    ttft_us: Annotated[Micros, _doc("from the request to the first token, as the witness saw both")]


class TurnEnd(Record, kw_only=True, tag="turn.end"):
    """The answer is complete, was refused or broke off. ``t`` is that moment."""

    by: Annotated[TurnWitness, _doc("who saw it")] = "engine"
    prompt_tokens: Annotated[Count | None, _doc("tokens of the prompt")] = None
    cached_tokens: Annotated[
        Count | None, _doc("of them found in the cache, wherever; where the tiers are known too")
    ] = None
    cached_device_tokens: Annotated[Count | None, _doc("of them found on the device")] = None
    cached_host_tokens: Annotated[Count | None, _doc("of them fetched from the host tier")] = None
    recomputed_tokens: Annotated[
        Count | None, _doc("of those that were not found, the ones that this session had in the cache before")
    ] = None
    output_tokens: Annotated[Count | None, _doc("tokens of the answer")] = None
    stable_prefix_tokens: Annotated[
        Count | None, _doc("of the prompt, the beginning it shares with the prompt before")
    ] = None
    queue_us: Annotated[Micros | None, _doc("from the arrival to the first step that computed anything for it")] = None
    prefill_us: Annotated[Micros | None, _doc("from there to the first token")] = None
    decode_us: Annotated[Micros | None, _doc("from the first token to the last")] = None
    preemptions: Annotated[Count | None, _doc("times it was thrown out of the running batch")] = None
    finish_reason: Annotated[
        str | None,
        _doc("stop, length, tool_calls, abort, error; overflow_400: the prompt did not fit the model; cut: broke off"),
    ] = None
    http_status: Annotated[int | None, _doc("status that the agent got; 0 when it got none")] = None
    error: Annotated[str | None, _doc("what went wrong, for people; never prompt text")] = None
    tools: Annotated[list[str], _doc("names of the tools that the answer asks for, in its order")] = []


class TurnTool(Record, kw_only=True, tag="turn.tool"):
    """A tool that an answer asked for, seen at the gateway; told again, with ``ended_us``, when the result went back.

    A kernel call is the same tool call where both have the agent's id of it, else where their times say so.
    """

    agent_call_id: Annotated[str, _doc("the id that the answer gave the tool call; made up where it gave none")]
    agent_tool: Annotated[str, _doc("the tool, as the agent calls it")] = ""
    began_us: Annotated[int, _doc("when the answer that asks for it was complete")]
    ended_us: Annotated[int | None, _doc("when the request with its result came; none when it has not yet")] = None
    result_chars: Annotated[Count | None, _doc("length of the result")] = None
    failed: Annotated[bool, _doc("the agent calls it failed")] = False


class CallStart(Record, kw_only=True, tag="call.start"):
    """A tool call begins. ``t`` is the moment of the fork of its first process."""

    tool: Annotated[str, _doc("base name of the program, or the tool's name where a hook gave it")] = ""
    category: Annotated[Category, _doc("class of the command, by the rules of categories.toml")] = "other"
    command: Annotated[str | None, _doc("command line; only its recognised words unless arguments are recorded")] = None
    hint: Annotated[str | None, _doc("AGENT_RESOURCE_HINT of the call, as the agent wrote it")] = None
    hint_bytes: Annotated[int | None, _doc("the hint in bytes; none when it has no number")] = None
    cgroup_id: Annotated[int | None, _doc("id of its cgroup in the v2 hierarchy")] = None
    boundary: Annotated[
        Boundary, _doc("what told us that the call began; fork: a program that the runtime started")
    ] = "fork"
    pid: Annotated[int | None, _doc("its first process")] = None
    predicted: Annotated[dict[str, Any] | None, _doc("p50_s, p90_s, n, source of the expected duration")] = None


class CallEnd(Record, kw_only=True, tag="call.end"):
    """The call's first process is gone. All figures are counters read at that moment."""

    exit_code: Annotated[int | None, _doc("exit code; none when a signal ended it")] = None
    signal: Annotated[int | None, _doc("signal that ended it; none when it exited")] = None
    oom: Annotated[bool, _doc("the kernel's OOM killer chose a process of this call")] = False
    duration_us: Annotated[Micros | None, _doc("from the fork to the exit of its first process")] = None
    peak_bytes: Annotated[Bytes | None, _doc("highest anonymous + shared memory of its process tree")] = None
    spike_bytes: Annotated[
        Bytes | None, _doc("session memory at its highest while this call allocated, less session memory at its start")
    ] = None
    kept_bytes: Annotated[Bytes | None, _doc("memory that processes left behind still hold at the end")] = None
    charged_peak_bytes: Annotated[
        Bytes | None, _doc("the memory controller's own peak: page cache and kernel memory included")
    ] = None
    rise_bytes_per_s: Annotated[Bytes | None, _doc("greatest growth in one burst window, per second")] = None
    cpu_us: Annotated[Micros | None, _doc("time on a CPU, all threads")] = None
    runq_wait_us: Annotated[Micros | None, _doc("time runnable but waiting for a CPU, all threads")] = None
    stall_us: Annotated[Micros | None, _doc("time stalled on memory (PSI some); none without a cgroup")] = None
    processes: Annotated[Count | None, _doc("processes it consisted of")] = None
    left_behind: Annotated[Count | None, _doc("processes that outlived it")] = None
    bursts: Annotated[Count | None, _doc("bursts over the threshold")] = None
    result_chars: Annotated[int | None, _doc("length of the result, where a hook gave it")] = None
    result_tokens: Annotated[int | None, _doc("tokens of the result, where the gateway counted them")] = None
    lost: Annotated[bool, _doc("the end was not seen (the collector was away); the figures are unknown")] = False


class CallMatch(Record, kw_only=True, tag="call.match"):
    """The agent's hooks named a tool call, and this is the call that it is, how that was found, and how surely.

    May come again for the same call, when the tool has ended: the last one counts.
    """

    agent_tool: Annotated[str, _doc("the tool, as the agent calls it")] = ""
    agent_call_id: Annotated[str, _doc("the agent's id of the tool call; made up where it gave none")] = ""
    confidence: Annotated[
        MatchConfidence,
        _doc("exact: the command text says so; likely: something may speak for another one; none: no process was seen"),
    ] = "none"
    how: Annotated[str, _doc("what they were matched by, for people")] = ""
    position: Annotated[Count, _doc("which of the processes that the tool started, from 1; 0 when there is none")] = 0
    began_us: Annotated[int | None, _doc("when the hook told that the tool begins; none when it did not")] = None
    ended_us: Annotated[int | None, _doc("when the hook told that it has ended; none when it has not")] = None
    result_chars: Annotated[Count | None, _doc("length of the result that the agent got")] = None
    failed: Annotated[bool, _doc("the agent calls it failed")] = False


class ProcExec(Record, kw_only=True, tag="proc.exec"):
    """A process of a session started a program."""

    pid: int
    ppid: int = 0
    comm: Annotated[str, _doc("kernel's name of the process, at most 15 bytes")] = ""


class ProcExit(Record, kw_only=True, tag="proc.exit"):
    """A process of a session is gone."""

    pid: int
    exit_code: int | None = None
    signal: int | None = None
    hiwater_bytes: Annotated[Bytes | None, _doc("highest resident set of this one process, shared pages included")] = (
        None
    )
    left_behind: Annotated[bool, _doc("it had outlived its call")] = False


# --- memory, pressure, scheduling ----------------------------------------------------------------------------------


class MemSample(Record, kw_only=True, tag="mem.sample"):
    """Memory of one subject at one instant."""

    subject: Annotated[Literal["runtime", "call", "session", "host"], _doc("whose memory")]
    anon_bytes: Annotated[Bytes, _doc("anonymous memory")]
    file_bytes: Annotated[Bytes | None, _doc("mapped file pages; pages that two processes map may count twice")] = None
    shmem_bytes: Annotated[Bytes | None, _doc("shared memory and tmpfs")] = None
    swap_bytes: Annotated[Bytes | None, _doc("swapped out")] = None
    peak_bytes: Annotated[Bytes | None, _doc("highest anonymous + shared memory so far, kept in the kernel")] = None
    charged_bytes: Annotated[Bytes | None, _doc("what the memory controller charges, page cache included")] = None
    high_bytes: Annotated[Bytes | None, _doc("soft limit; none when unlimited")] = None
    max_bytes: Annotated[Bytes | None, _doc("hard limit; none when unlimited")] = None
    source: Annotated[
        Literal["memcg", "rss_stat", "cgroupfs", "procfs"], _doc("which counter: kernel events or files read")
    ] = "rss_stat"


class MemBurst(Record, kw_only=True, tag="mem.burst"):
    """Memory of one call or runtime grew over the threshold within one window."""

    grown_bytes: Annotated[Bytes, _doc("growth within the window at the moment of the event")]
    window_us: Annotated[Micros, _doc("length of the window")]
    total_bytes: Annotated[Bytes, _doc("anonymous + shared memory of the call or runtime at that moment")]
    pid: Annotated[int | None, _doc("process whose allocation crossed the threshold")] = None


class MemEvent(Record, kw_only=True, tag="mem.event"):
    """The memory controller's events since the last one (deltas)."""

    low: int = 0
    high: int = 0
    max: Annotated[int, _doc("the limit was hit (v1: failcnt)")] = 0
    oom: int = 0
    oom_kill: int = 0
    pid: Annotated[int | None, _doc("process chosen, where the kernel named it")] = None


class PsiSample(Record, kw_only=True, tag="psi.sample"):
    """Pressure stall time since the last sample (deltas)."""

    subject: Literal["runtime", "call", "session", "host"] = "session"
    memory_some_us: Micros | None = None
    memory_full_us: Micros | None = None
    cpu_some_us: Micros | None = None
    io_some_us: Micros | None = None
    io_full_us: Micros | None = None
    window_us: Annotated[Micros | None, _doc("time since the last sample")] = None


class SchedSample(Record, kw_only=True, tag="sched.sample"):
    """Scheduling of one subject since the last sample (deltas)."""

    subject: Literal["runtime", "call", "session", "host"] = "call"
    oncpu_us: Annotated[Micros, _doc("time on a CPU, all threads")]
    wait_us: Annotated[Micros | None, _doc("time runnable but waiting for a CPU; none where only files are read")] = (
        None
    )
    wait_max_us: Annotated[Micros | None, _doc("longest single wait since the subject began")] = None
    switches: Annotated[Count | None, _doc("times it was put on a CPU")] = None
    hist: Annotated[list[int] | None, _doc("waits by size: bucket i counts 2^i .. 2^(i+1) microseconds")] = None
    window_us: Annotated[Micros | None, _doc("time since the last sample")] = None


class SelfCost(Struct, kw_only=True, omit_defaults=True):
    cpu_us: int = 0
    rss_bytes: int = 0
    bpf_run_us: int | None = None
    events: int = 0


class HostSample(Record, kw_only=True, tag="host.sample"):
    """The host, and what the collector itself takes of it."""

    mem_available_bytes: Annotated[Bytes, _doc("MemAvailable")]
    mem_total_bytes: Annotated[Bytes, _doc("MemTotal")]
    cpu_busy_us: Annotated[Micros, _doc("CPU time not idle since the last sample, all CPUs")] = 0
    swap_used_bytes: Bytes = 0
    window_us: Annotated[Micros | None, _doc("time since the last sample")] = None
    own: Annotated[
        SelfCost | None, _doc("the collector: cpu_us since the last sample, rss_bytes, bpf_run_us, events")
    ] = None


# --- actions and policies ------------------------------------------------------------------------------------------


class Action(Record, kw_only=True, tag="action"):
    """Something was done to a session or call, or in observe mode would have been."""

    plane: Plane
    verb: Literal[
        "delay", "freeze", "thaw", "stop", "resume", "kill", "set_high", "set_max", "set_weight",
        "pin", "unpin", "offload", "drop", "restore", "compact",
    ]  # fmt: skip
    target: str
    policy: str | None = None
    version: int | None = None
    enforced: bool
    reason: str = ""
    inputs: dict[str, Any] = {}
    latency_us: int | None = None
    outcome: str | None = None
    observed: dict[str, Any] = {}


class Feedback(Record, kw_only=True, tag="feedback"):
    """What the agent was told."""

    text: str
    channel: Literal["stderr", "hook", "gateway"]


class PolicyChange(Record, kw_only=True, tag="policy.change"):
    """An operator changed a policy."""

    policy: str
    plane: Plane
    version: int
    mode: Literal["off", "observe", "enforce"]
    scope: dict[str, Any] = {}
    params: dict[str, Any] = {}
    by: str = ""
    reason: str = ""
    lease_s: float | None = None


class PolicyAck(Record, kw_only=True, tag="policy.ack"):
    """A collector answered a policy: what is in force now."""

    policy: str
    version: int
    collector: str = ""
    outcome: Literal["accepted", "clipped", "deferred", "rejected", "missing"]
    observed: dict[str, Any] = {}
    reason: str = ""


# --- the engine ----------------------------------------------------------------------------------------------------


class EngineStart(Record, kw_only=True, tag="engine.start"):
    """An inference engine is there: what it is, and who watches it. A later one of the same ``engine`` is a restart."""

    engine: Annotated[str, _doc("its name, the same after a restart; one a data-parallel rank")]
    name: Annotated[str, _doc("software: vllm")] = "vllm"
    version: Annotated[str, _doc("version of the software; empty when nobody knows it")] = ""
    plugin: Annotated[
        bool, _doc("watched from inside, by our plugin; else from outside, by its metrics and events")
    ] = False
    pid: Annotated[int | None, _doc("process of the engine core")] = None
    model: Annotated[str, _doc("model that it serves")] = ""
    max_tokens: Annotated[int | None, _doc("longest prompt and answer together")] = None
    block_tokens: Annotated[int | None, _doc("tokens in one KV block")] = None
    pool_blocks: Annotated[int | None, _doc("KV blocks on the device that sessions can have")] = None
    kv_bytes_per_token: Annotated[int | None, _doc("bytes of KV cache a token takes, all layers")] = None
    host_tier_bytes: Annotated[int | None, _doc("capacity of the host tier; 0 when there is none")] = None
    mode: Annotated[KvMode, _doc("off, observe: decides and touches nothing, enforce")] = "off"
    rule: Annotated[str, _doc("lru, ttl, ttl-star or four-state; empty when nobody decides")] = ""
    params: Annotated[dict[str, Any], _doc("parameters of the rule: ttl_s, pin_cap, and so on")] = {}


class EngineEnd(Record, kw_only=True, tag="engine.end"):
    """The engine is gone, and with it everything on its device."""

    engine: Annotated[str, _doc("its name")]
    clean: Annotated[bool, _doc("it shut down by itself")] = True


class EngineMode(Record, kw_only=True, tag="engine.mode"):
    """The plugin's mode changed without anybody's asking: a fault in it makes it observe or stop."""

    engine: Annotated[str, _doc("its name")]
    mode: KvMode
    reason: Annotated[str, _doc("what happened, for people")] = ""


class KvCalibration(Record, kw_only=True, tag="kv.calibration"):
    """Measured cost of rebuilding, restoring and saving KV blocks on this engine, since it started."""

    engine: Annotated[str, _doc("name of the engine")] = ""
    rebuild: Annotated[
        dict[str, float],
        _doc("a0_s, a1_s, a2_s: seconds to prefill n tokens are a0 + a1 n + a2 n^2; r2 of the fit, n samples"),
    ] = {}
    restore: Annotated[
        dict[str, float],
        _doc("t0_s, bytes_per_s: seconds to bring n bytes back are t0 + n / bytes_per_s; r2, n samples"),
    ] = {}
    save: Annotated[
        dict[str, float],
        _doc("s0_s, bytes_per_s of the copy to the host, overlap: share that delays nobody; r2, n samples"),
    ] = {}
    breakeven_tokens: Annotated[
        float | None, _doc("above so many tokens a restore is faster than a rebuild; none when it never is, or unknown")
    ] = None
    samples: Annotated[
        dict[str, list[list[float]]],
        _doc("newest samples: rebuild [tokens, seconds], restore and save [bytes, seconds]; at most 64 of each"),
    ] = {}
    kv_bytes_per_token: int | None = None


class KvDecision(Record, kw_only=True, tag="kv.decision"):
    """What to do with a session's KV blocks at a boundary, and why. Its ``seq`` names it to what follows from it."""

    engine: Annotated[str, _doc("name of the engine")] = ""
    boundary: Annotated[
        Literal["call", "turn_end", "pressure", "ttl", "compaction", "terminal"],
        _doc("call: the answer asks for a tool; turn_end: it does not; terminal: the session will not come back"),
    ]
    action: Annotated[KvAction, _doc("what the rule chose, or who overrode it")]
    enforced: Annotated[bool, _doc("false: nothing was done, it would have been")]
    blocks: Annotated[Count | None, _doc("blocks that it is about: those of the session that can be found")] = None
    done_blocks: Annotated[
        Count | None,
        _doc("of them, those really pinned, offloaded or dropped: the cap and other sessions may leave fewer"),
    ] = None
    tool: Annotated[str | None, _doc("tool that the answer asks for, where it was recognised")] = None
    inputs: Annotated[
        dict[str, Any],
        _doc("everything the rule looked at, see decision.Inputs; the decision can be taken again from it"),
    ] = {}
    costs: Annotated[
        dict[str, float],
        _doc(
            "keep_s, pin_s, offload_s, drop_s: expected delay of each; what cannot be chosen is not there: no room, "
            "no host tier, or a drop of a session that may come back"
        ),
    ] = {}
    margin_s: Annotated[float | None, _doc("second best cost less the best one")] = None
    ttl_s: Annotated[float | None, _doc("how long a pin shall last")] = None
    predicted: Annotated[
        dict[str, Any] | None, _doc("p50_s, p90_s, n, source of the expected time until it comes back")
    ] = None
    rule: Annotated[str, _doc("lru, ttl, ttl-star or four-state")] = ""
    rule_action: Annotated[KvAction | None, _doc("what the rule chose, where it was overridden")] = None
    policy: str | None = None
    version: int | None = None
    overridden_by: Annotated[
        str | None, _doc("who chose instead of the rule: request (vllm_xargs), cap, no-tier, host-full, command")
    ] = None


class KvTransition(Record, kw_only=True, tag="kv.transition"):
    """Blocks of a session changed their state. ``residency`` is where all its blocks are after it."""

    engine: Annotated[str, _doc("name of the engine")] = ""
    from_: Annotated[KvState, _doc("state before; gone: they were not there")] = msgspec.field(name="from")
    to: KvState
    blocks: Annotated[int, _doc("how many blocks changed")]
    tokens: Annotated[int | None, _doc("tokens in them")] = None
    cause: Annotated[
        Literal[
            "computed", "admitted", "restored", "finished", "decision", "lru", "ttl", "pressure", "preemption",
            "superseded", "reset", "command", "aborted", "host_full", "host_evicted", "failed", "restart", "forgotten",
        ],
        _doc("computed: prefill or decode made them; admitted: a request took cached ones; lru: others took the space"),
    ]  # fmt: skip
    decision_seq: Annotated[int | None, _doc("seq of the decision of the same src that it follows from")] = None
    victim_of: Annotated[str | None, _doc("session whose request took the space; none when nobody knows")] = None
    until_us: Annotated[int | None, _doc("when a pin runs out")] = None
    residency: Annotated[
        dict[str, int], _doc("blocks of the session by state after the change; gone: had before and are nowhere")
    ] = {}
    shared_blocks: Annotated[Count | None, _doc("of those on the device, the ones that other sessions have too")] = None


class KvTransfer(Record, kw_only=True, tag="kv.transfer"):
    """Blocks were copied between device and host."""

    engine: Annotated[str, _doc("name of the engine")] = ""
    direction: Annotated[Literal["out", "in"], _doc("out: device to host")]
    tier: str = "host"
    bytes: Annotated[Bytes, _doc("bytes that were copied")] = 0
    blocks: Count | None = None
    tokens: Count | None = None
    duration_us: Annotated[Micros | None, _doc("time of the copy itself")] = None
    exposed_us: Annotated[
        Micros | None, _doc("out: of it, while others waited for room; in: what its request waited, steps and all")
    ] = None
    ok: bool = True
    error: Annotated[str | None, _doc("why it failed")] = None
    decision_seq: int | None = None


class KvOutcome(Record, kw_only=True, tag="kv.outcome"):
    """What came of a decision when the session returned, or was given up."""

    engine: Annotated[str, _doc("name of the engine")] = ""
    decision_seq: Annotated[int, _doc("seq of the decision of the same src")]
    action: Annotated[KvAction | None, _doc("what had been decided")] = None
    returned: Annotated[bool, _doc("false: the session never came back, as far as anybody waited")] = True
    gap_us: Annotated[Micros, _doc("from the end of the turn to the next request")]
    evicted: Annotated[bool, _doc("whether anything that the next turn could have used had left the device")]
    served_from: Annotated[
        ServedFrom,
        _doc("where the reusable beginning of the prompt came from; none: the prompt had none, or never came"),
    ]
    cached_device_tokens: Count | None = None
    cached_host_tokens: Count | None = None
    recomputed_tokens: Count | None = None
    retrieval_us: Annotated[
        Micros | None, _doc("time it took to have the reusable beginning again: restore and rebuild")
    ] = None
    hindsight_best: Annotated[KvAction | None, _doc("action that would have cost least, knowing what came")] = None
    regret_s: Annotated[float | None, _doc("cost of what was done less that of the best")] = None


class EngineSample(Record, kw_only=True, tag="engine.sample"):
    """The engine at one instant; counters are cumulative and the reader differences them.

    Blocks are counted once, however many sessions share them. A field that is not there is not known.
    """

    engine: Annotated[str, _doc("name of the engine")] = ""
    running: Annotated[Count | None, _doc("requests in the running batch")] = None
    waiting: Annotated[Count | None, _doc("requests that wait")] = None
    waiting_by_reason: Annotated[
        dict[str, int], _doc("capacity, preempted, deferred, grammar, remote_kv, streaming")
    ] = {}
    blocks_total: Annotated[Count | None, _doc("blocks of the pool")] = None
    blocks_active: Annotated[Count | None, _doc("referenced by requests that run")] = None
    blocks_cached: Annotated[Count | None, _doc("free to be taken, and holding something that can be used again")] = (
        None
    )
    blocks_pinned: Annotated[Count | None, _doc("held for sessions that wait, referenced by nothing that runs")] = None
    blocks_free: Annotated[Count | None, _doc("free and empty")] = None
    blocks_used: Annotated[
        Count | None, _doc("active and pinned together, where only the gauge of the engine is known")
    ] = None
    sessions: Annotated[Count | None, _doc("sessions in the residency table")] = None
    host_used_bytes: Annotated[Bytes | None, _doc("of the host tier")] = None
    host_total_bytes: Annotated[Bytes | None, _doc("of the host tier")] = None
    prefix_queries_tokens: Annotated[Count | None, _doc("cumulative: tokens that were looked up on the device")] = None
    prefix_hits_tokens: Annotated[Count | None, _doc("cumulative: tokens of them that were there")] = None
    external_queries_tokens: Annotated[
        Count | None, _doc("cumulative: tokens that were looked up in the host tier")
    ] = None
    external_hits_tokens: Annotated[Count | None, _doc("cumulative: tokens of them that were there")] = None
    recomputed_tokens: Annotated[Count | None, _doc("cumulative: tokens computed again that a session had had")] = None
    preemptions: Annotated[Count | None, _doc("cumulative")] = None
    prompt_tokens: Annotated[Count | None, _doc("cumulative")] = None
    output_tokens: Annotated[Count | None, _doc("cumulative")] = None
    steps: Annotated[Count | None, _doc("cumulative: steps of the scheduler")] = None
    step_us: Annotated[Micros | None, _doc("longest step since the last sample")] = None
    own_us: Annotated[Micros | None, _doc("cumulative: time that our plugin took inside the engine")] = None
    missing: Annotated[list[str], _doc("metrics that this engine does not have, by the names we looked for")] = []


class CtxNode(Record, kw_only=True, tag="ctx.node"):
    """A tool result entered the context."""

    full_tokens: int
    view_tokens: int | None = None
    handle_tokens: int | None = None


class CtxLevel(Record, kw_only=True, tag="ctx.level"):
    """A node of the context changed its level of detail."""

    node: str
    from_: str = msgspec.field(name="from")
    to: str
    cause: str = ""


class CtxCompact(Record, kw_only=True, tag="ctx.compact"):
    """The context was compacted."""

    before_tokens: int
    after_tokens: int
    first_changed_token: int | None = None
    invalidated_tokens: int | None = None
    high: int | None = None
    low: int | None = None
    duration_us: int | None = None
    nodes: list[str] = []


class CtxRetrieve(Record, kw_only=True, tag="ctx.retrieve"):
    """A node was fetched back in full."""

    node: str
    tokens: int
    turns_since: int | None = None


# --- what went wrong, what somebody said ---------------------------------------------------------------------------


class Loss(Record, kw_only=True, tag="loss"):
    """Records that were not kept."""

    where: Annotated[
        Literal["bpf_ring", "bpf_map", "link", "zmq", "sse", "import", "store"], _doc("where they were lost")
    ]
    count: Annotated[Count, _doc("how many; 0 on the link: nobody knows, because the sender named by `of` is gone")]
    of: Annotated[str, _doc("what they were: samples, events, records; or the src whose seq has the gap")] = ""
    since_us: Annotated[int | None, _doc("time of the last record before the gap")] = None


class Note(Record, kw_only=True, tag="note"):
    """Free text."""

    text: str
    by: str = ""


AnyRecord = (
    RunMeta | RunEnd | Capability | SessionStart | SessionEnd | TurnStart | TurnFirstToken | TurnEnd | TurnTool
    | CallStart | CallEnd | CallMatch | ProcExec | ProcExit | MemSample | MemBurst | MemEvent | PsiSample | SchedSample
    | HostSample | Action | Feedback | PolicyChange | PolicyAck | EngineStart | EngineEnd | EngineMode | KvCalibration
    | KvDecision | KvTransition | KvTransfer | KvOutcome | EngineSample | CtxNode | CtxLevel | CtxCompact | CtxRetrieve
    | Loss | Note
)  # fmt: skip

SAMPLE_TYPES: Final = (MemSample, PsiSample, SchedSample, HostSample, EngineSample)
"""Records that a full queue gives up first: the next one says the same later."""


class Unknown(Struct, kw_only=True):
    """A line whose ``type`` this version does not know: kept as it is and counted."""

    v: int
    seq: int = -1
    src: str = ""
    t: int = 0
    type: str = ""


class RecordError(ValueError):
    """A line that is no record: says what was expected, and at which column (from 1) where that is known."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyRecord)
_envelope: Final[msgspec.json.Decoder[Unknown]] = msgspec.json.Decoder(Unknown)
_encoder: Final = msgspec.json.Encoder()
TYPES: Final[dict[str, type[Record]]] = {
    str(msgspec.inspect.type_info(cls).tag): cls  # type: ignore[attr-defined]
    for cls in AnyRecord.__args__
}


def encode(record: Record) -> bytes:
    """One line, without the newline."""
    return _encoder.encode(record)


def decode(line: bytes | bytearray | memoryview) -> AnyRecord | Unknown:
    """Read one line.

    Returns :class:`Unknown` for a type of a later version. Raises :class:`RecordError` for anything else that does
    not fit the vocabulary, a missing or other major version among them.
    """
    if len(line) > MAX_LINE_BYTES:
        raise RecordError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    if not isinstance(line, bytes):
        line = bytes(line)
    if not line.isascii():
        _check_text(line)
    try:
        record: AnyRecord = _decoder.decode(line)
    except msgspec.ValidationError as error:
        return _decode_unknown(line, error)
    except msgspec.DecodeError as error:
        raise _not_json(error) from None
    except RecursionError:
        raise RecordError("nested too deeply") from None
    if record.v != VERSION:
        raise RecordError(f"record version {record.v}; this Tidegate reads version {VERSION}")
    return record


def _check_text(line: bytes) -> None:
    # The decoder does not look into names and values that it skips, and others read them later.
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise RecordError("not JSON: invalid UTF-8", error.start + 1) from None


def _decode_unknown(line: bytes, error: msgspec.ValidationError) -> Unknown:
    try:
        envelope = _envelope.decode(line)
    except msgspec.ValidationError as envelope_error:
        raise RecordError(f"not a record: {envelope_error}") from None
    except msgspec.DecodeError as decode_error:  # what did not fit stood before what is no JSON
        raise _not_json(decode_error) from None
    except RecursionError:
        raise RecordError("nested too deeply") from None
    if envelope.v != VERSION:
        raise RecordError(f"record version {envelope.v}; this Tidegate reads version {VERSION}") from None
    if not envelope.type:
        raise RecordError("a record without a type") from None
    if envelope.type in TYPES:
        raise RecordError(f"{envelope.type}: {error}") from None
    return envelope


def _not_json(error: msgspec.DecodeError) -> RecordError:
    message = str(error)
    _, _, position = message.rpartition("(byte ")
    digits = position.rstrip(")")
    column = int(digits) + 1 if digits.isdigit() else None
    return RecordError(f"not JSON: {message}", column)
