// The time grammar of the playhead's field. Pure: text and the run's extent in, an instant out.
//
//   2m  90s  1h5m30s  1.5m  500ms     after the run's start
//   1:30  0:12.5                      the same, minutes and seconds, as the axes are labelled
//   14:05:30                          time of day, as the events are labelled; with a date before it if need be
//   +10s  -30s  -1:30                 from the position
//   start  end  now                   (end and now of a run that is being written: live)

const UNITS_US = { ms: 1e3, s: 1e6, m: 6e7, min: 6e7, h: 3.6e9, d: 8.64e10 };
const DAY_US = 8.64e10;
export const HINT = "2m or 1:30 after the start, 14:05:30 time of day, -30s or +10s from here, start, end";

/** What was typed is no time, or none of this run; the message says what was expected. */
export class TimeError extends Error {
  constructor(message) { super(message); this.name = "TimeError"; }
}

/** A length like 1h5m30s, 90s, 1:30 or 1:05:30 (with `clock`, two colons are allowed) in microseconds; null when it is none. */
export function lengthOf(text, { clock = false } = {}) {
  const colons = /^(?:(\d{1,4}):)?(\d{1,5}):(\d{2}(?:\.\d{1,6})?)$/.exec(text);
  if (colons && (clock || colons[1] === undefined)) {
    const [, hours, minutes, seconds] = colons;
    if (Number(seconds) >= 60 || (hours !== undefined && Number(minutes) >= 60)) return null;
    return Math.round(((Number(hours ?? 0) * 60 + Number(minutes)) * 60 + Number(seconds)) * 1e6);
  }
  if (!/^(?:\d+(?:\.\d+)?\s*(?:ms|s|min|m|h|d)\s*)+$/.test(text)) return null;
  let sum = 0;
  for (const [, number, unit] of text.matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)/g)) sum += Number(number) * UNITS_US[unit];
  return Math.round(sum);
}

/**
 * The instant that `text` names: {atUs, live}; live true means "follow now".
 * extent = {startUs, endUs, atUs, writing}. `say(us)` writes an instant of the run for messages.
 * @throws {TimeError}
 */
export function parseTime(text, { startUs, endUs, atUs, writing = false }, say = (us) => new Date(us / 1000).toISOString()) {
  const typed = text.trim().toLowerCase().replace(/[−–]/g, "-");
  if (!typed) throw new TimeError(`Type a time: ${HINT}.`);
  if (typed === "start") return { atUs: startUs, live: false };
  if (typed === "end" || typed === "now" || typed === "live") {
    if (typed !== "end" && !writing) throw new TimeError("This run has ended: there is no now. Type end for its last moment.");
    return { atUs: endUs, live: writing };
  }
  if (/^[+-]/.test(typed)) {
    const length = lengthOf(typed.slice(1).trim(), { clock: true });
    if (length === null) throw new TimeError(`${typed}: after + or - a length is expected, as in -30s, +2m or -1:30.`);
    const to = atUs + (typed[0] === "-" ? -length : length);
    return { atUs: Math.min(Math.max(to, startUs), endUs), live: writing && to >= endUs };
  }
  const clock = clockTime(typed, { startUs, endUs, atUs });
  if (clock !== undefined) {
    if (clock === null) throw new TimeError(`${typed} is not within this run, which goes from ${say(startUs)} to ${say(endUs)}.`);
    return { atUs: clock, live: false };
  }
  const length = lengthOf(typed);
  if (length === null) {
    if (/^\d+(\.\d+)?$/.test(typed)) throw new TimeError(`${typed} of what? Say ${typed}s, ${typed}m or ${typed}h after the start.`);
    throw new TimeError(`${typed.slice(0, 40)} is no time. Expected: ${HINT}.`);
  }
  if (startUs + length > endUs) throw new TimeError(`${typed} is after the end: the run is ${lengthWords(endUs - startUs)} long.`);
  return { atUs: startUs + length, live: false };
}

// A time of day within the run, nearest to the position; null when the run has no such moment, undefined when it is no time of day.
function clockTime(typed, { startUs, endUs, atUs }) {
  const found = /^(?:(\d{4})-(\d{2})-(\d{2})[ t])?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,6})?)$/.exec(typed);
  if (!found) return undefined;
  const [, year, month, day, hours, minutes, seconds] = found;
  if (Number(hours) > 23 || Number(minutes) > 59 || Number(seconds) >= 60) throw new TimeError(`${typed} is no time of day: hours go to 23, minutes and seconds to 59.`);
  const at = (date) => {
    date.setHours(Number(hours), Number(minutes), 0, 0);
    return date.getTime() * 1000 + Math.round(Number(seconds) * 1e6);
  };
  // To the second, as it is shown: a run that begins at 14:05:30.2 has 14:05:30.
  const within = (us) => (us >= startUs && us <= endUs ? us : us < startUs && us + 1e6 > startUs ? startUs : null);
  if (year !== undefined) return within(at(new Date(Number(year), Number(month) - 1, Number(day))));
  const candidates = [];
  for (let us = startUs - DAY_US; us <= endUs + DAY_US && candidates.length < 400; us += DAY_US) {
    const here = within(at(new Date(us / 1000)));
    if (here !== null) candidates.push(here);
  }
  candidates.sort((a, b) => Math.abs(a - atUs) - Math.abs(b - atUs));
  return candidates.length ? candidates[0] : null;
}

function lengthWords(us) {
  const seconds = us / 1e6;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds), hours = Math.floor(whole / 3600), rest = `${Math.floor(whole / 60) % 60}:${String(whole % 60).padStart(2, "0")}`;
  return hours ? `${hours}:${rest.padStart(5, "0")}` : rest;
}
