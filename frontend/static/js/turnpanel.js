// The panel of one turn: its tokens by where they came from, its phases, and the tools that its answer asked for.

import { clean, duration, el, elapsed, integer, known, UNKNOWN } from "./format.js";
import { begin, turnEnd } from "./kvdata.js";

function fact(label, def, ...value) { return [el("dt", {}, el("a", { href: `/definitions#${def}`, "data-def": def }, label)), el("dd", { def }, ...value)]; }

const FROM = { launcher: "tidegate run", header: "the agent's header", body: "the request", prefix: "the beginning of the conversation" };

/** Fill `node`. `calls` are the session's calls by id. */
export function drawTurn(node, turn, { startUs, nowUs, calls, select, close }) {
  const bad = turn.failed || turn.finish_reason === "abort";
  node.replaceChildren(
    el("header", { class: "card-head" }, el("h2", {}, "Turn at ", el("span", { def: "turn.started_us" }, elapsed(begin(turn) - startUs, 1e5))), el("button", { type: "button", class: "quiet", "aria-label": "Close the turn", onclick: close }, "✕")),
    el("dl", { class: "facts" },
      ...fact("took", "turn.duration_us", duration(turnEnd(turn, nowUs) - begin(turn))),
      ...fact("first token after", "turn.ttft_us", duration(turn.ttft_us)),
      ...fact("queue / prefill / decode", "turn.queue_us", [turn.queue_us, turn.prefill_us, turn.decode_us].map(duration).join(" / ")),
      ...fact("prompt", "turn.prompt_tokens", tokens(turn.prompt_tokens)),
      ...(known(turn.cached_device_tokens) || !known(turn.cached_tokens)
        ? [...fact("from the device", "turn.cached_device_tokens", tokens(turn.cached_device_tokens)), ...fact("from the host", "turn.cached_host_tokens", tokens(turn.cached_host_tokens))]
        : fact("from the cache", "turn.cached_tokens", tokens(turn.cached_tokens))),
      ...fact("computed again", "turn.recomputed_tokens", tokens(turn.recomputed_tokens)),
      ...fact("answer", "turn.output_tokens", tokens(turn.output_tokens)),
      ...fact("finish", "turn.finish_reason", el("span", { class: bad ? "trouble" : null, text: clean(turn.finish_reason || (turn.state === "running" ? "running" : UNKNOWN), 60) })),
      ...(known(turn.http_status) ? fact("HTTP status", "turn.http_status", turn.http_status ? String(turn.http_status) : "none: no answer") : []),
      ...(turn.preemptions ? fact("thrown out", "turn.preemptions", `${integer(turn.preemptions)} times`) : []),
      ...(turn.model ? fact("model", "turn.model", el("span", { text: clean(turn.model, 60) })) : []),
      ...(turn.session_from ? fact("session by", "turn.session_from", FROM[turn.session_from] || clean(turn.session_from, 20)) : []),
      el("dt", {}, "seen by"), el("dd", {}, turn.by.join(" and ") || UNKNOWN)),
    ...(turn.error ? [el("p", { class: "trouble", "data-text": true }, clean(turn.error, 400))] : []),
    ...tools(turn, calls, select));
}

function tokens(value) { return known(value) ? `${integer(value)} tokens` : UNKNOWN; }

function tools(turn, calls, select) {
  if (!turn.tool_calls.length) return [];
  const list = el("ul", { class: "tools" });
  for (const tool of turn.tool_calls) {
    const item = el("li", {}, el("span", { text: clean(tool.agent_tool || "a tool", 60) }), known(tool.ended_us) ? el("small", { class: "muted", def: "tool.took_us" }, ` ${duration(tool.ended_us - tool.began_us)}`) : "", tool.failed ? el("small", { class: "trouble" }, " failed") : "");
    const shown = tool.calls.slice(0, 6);
    for (const id of shown) {
      const call = calls.get(id), link = el("a", { href: `#call=${encodeURIComponent(id)}`, text: call ? `call ${call.ordinal}` : id });
      link.addEventListener("click", (event) => { event.preventDefault(); select(id); });
      item.append(" ", link);
    }
    if (tool.calls_total > shown.length) item.append(" ", el("small", { def: "tool.calls" }, `and ${integer(tool.calls_total - shown.length)} more`));
    item.append(" ", el("small", { class: "muted", def: "tool.confidence", title: clean(tool.how, 200) }, tool.confidence || "no call found"));
    list.append(item);
  }
  return [el("h3", {}, "Tools that it asked for"), list];
}
