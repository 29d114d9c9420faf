// Samples of rebuilds and restores with their fits, seconds over tokens, and where the two lines cross.

import { margins, niceTicks } from "./charts.js";
import { seconds } from "./enginewords.js";
import { integer, known, svg } from "./format.js";

const WIDTH = 560, HEIGHT = 220, POINTS = 64;

/** The plot as an svg; its numbers stand beside it. */
export function plot({ rebuild, restore, samples, breakeven_tokens: breakeven }, bytesPerToken) {
  const { rem } = margins(), left = 4.4 * rem, right = WIDTH - rem, top = rem, bottom = HEIGHT - 1.8 * rem;
  const rebuilds = samples.rebuild || [];
  const restores = bytesPerToken ? (samples.restore || []).map(([size, took]) => [size / bytesPerToken, took]) : [];
  const xMax = Math.max(64, ...rebuilds.map(([tokens]) => tokens), ...restores.map(([tokens]) => tokens), known(breakeven) && breakeven < 1e6 ? breakeven * 1.2 : 0);
  const rebuildAt = (n) => rebuild.a0_s + rebuild.a1_s * n + (rebuild.a2_s || 0) * n * n;
  const restoreAt = (n) => restore.t0_s + (known(restore.bytes_per_s) ? n * bytesPerToken / restore.bytes_per_s : 0);
  const hasRebuild = known(rebuild.a1_s), hasRestore = known(restore.t0_s) && bytesPerToken > 0;
  const yMax = Math.max(1e-4, ...rebuilds.map(([, took]) => took), ...restores.map(([, took]) => took), hasRebuild ? rebuildAt(xMax) : 0, hasRestore ? restoreAt(xMax) : 0) * 1.08;
  const x = (n) => left + n / xMax * (right - left), y = (s) => bottom - Math.max(0, s) / yMax * (bottom - top);
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "calibration", "data-def": "calibration.rebuild", role: "img", "aria-label": `Time of a rebuild${hasRestore ? " and of a restore" : ""} over the tokens: ${integer(rebuilds.length)} samples of a rebuild, ${integer(restores.length)} of a restore` });
  for (const value of niceTicks(yMax, 3).ticks) root.append(svg("line", { class: "gridline", x1: left, x2: right, y1: y(value), y2: y(value) }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, seconds(value)));
  for (const value of niceTicks(xMax, 4).ticks) root.append(svg("text", { x: x(value), y: bottom + 1.2 * rem, "text-anchor": "middle" }, `${integer(value)}${value ? "" : " tokens"}`));
  const curve = (at) => Array.from({ length: POINTS + 1 }, (_, i) => `${i ? "L" : "M"}${x(xMax * i / POINTS).toFixed(1)} ${y(at(xMax * i / POINTS)).toFixed(1)}`).join("");
  if (hasRebuild) root.append(svg("path", { class: "fit rebuild", d: curve(rebuildAt) }), svg("text", { x: right, y: Math.max(top + 10, y(rebuildAt(xMax)) - 6), "text-anchor": "end" }, "rebuild"));
  if (hasRestore) root.append(svg("path", { class: "fit restore", d: curve(restoreAt) }), svg("text", { x: right, y: y(restoreAt(xMax)) - 6, "text-anchor": "end" }, "restore"));
  for (const [tokens, took] of rebuilds) root.append(svg("circle", { class: "sample rebuild", cx: x(tokens), cy: y(took), r: 3 }));
  for (const [tokens, took] of restores) root.append(svg("rect", { class: "sample restore", x: x(tokens) - 3, y: y(took) - 3, width: 6, height: 6 }));
  if (known(breakeven) && breakeven <= xMax) root.append(svg("line", { class: "breakeven", x1: x(breakeven), x2: x(breakeven), y1: top, y2: bottom }), svg("text", { x: x(breakeven) + 5, y: top + 10 }, `break-even ${integer(breakeven)}`));
  return root;
}
