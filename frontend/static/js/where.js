// Which run and which instant a page shows, in its URL: ?run=ID&at=MICROSECONDS. Both may be absent: the default run, and now
// (of a run that is being written) or its end (of any other).

/** {run, at} of a URL's query; null where absent or no number. */
export function parse(search) {
  const query = new URLSearchParams(search);
  const at = query.get("at");
  return { run: query.get("run") || null, at: at !== null && /^\d{1,17}$/.test(at) ? Number(at) : null };
}

/** The query that says so, with its question mark; "" when there is nothing to say. Further parameters come behind. */
export function search({ run, at }, more = {}) {
  const query = new URLSearchParams();
  if (run) query.set("run", run);
  if (at !== null && at !== undefined) query.set("at", String(Math.round(at)));
  for (const [key, value] of Object.entries(more)) if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  const text = query.toString();
  return text ? `?${text}` : "";
}

const PAGES = /^\/(?!api\/|static\/|login)/;

/**
 * Links between pages keep run and position: each link of ours gets them when it is pointed at, focused or pressed, so that
 * it is right however it is followed (in a new tab, copied), and nothing needs rewriting while a run plays. A link with
 * data-fixed says itself what it shows.
 */
export function carryLinks(place) {
  const update = (event) => {
    const link = event.target.closest?.("a[href]");
    const href = link?.getAttribute("href");
    if (!link || "fixed" in link.dataset || link.hasAttribute("download") || !PAGES.test(href)) return;
    const url = new URL(href, location.origin);
    const wanted = url.pathname + search(place()) + url.hash;
    if (href !== wanted) link.setAttribute("href", wanted);
  };
  for (const kind of ["pointerover", "focusin", "pointerdown", "keydown", "click"]) document.addEventListener(kind, update, true);
}
