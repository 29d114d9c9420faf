// The event stream: one EventSource a tab, closed while the page is hidden or there is nothing to follow.

const RETRY_MS = [500, 1000, 2000, 5000];
const KINDS = ["hello", "frame", "gap", "end", "failed"];

/** Calls `handlers`: hello(data), frame(data), gap(data), end(data), failed(data), status("connecting"|"open"|"lost"|...), reconnect(). */
export class Stream {
  #source = null; #timer = 0; #failures = 0; #url = null; #handlers;

  constructor(handlers) { this.#handlers = handlers; }

  /** Follow what `url()` names; it is asked again at each connection, since what was seen meanwhile need not come twice. */
  open(url) {
    this.#url = url;
    this.#connect();
  }

  /** Stop; `status` says why. */
  close(status) {
    this.#url = null;
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
    this.#handlers.status(status);
  }

  #connect() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#handlers.status("connecting");
    const source = new EventSource(this.#url());
    this.#source = source;
    source.addEventListener("open", () => { this.#failures = 0; this.#handlers.status("open"); });
    for (const kind of KINDS) source.addEventListener(kind, (event) => this.#handlers[kind](JSON.parse(event.data || "null")));
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#handlers.status("lost");
      // Own retries: the browser's pause is several seconds, and after a refusal (a restarting server) it gives up.
      source.close();
      if (!this.#url) return;
      const delay = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)];
      this.#timer = setTimeout(() => this.#retry(), delay);
    });
  }

  // The server resumes where we were, or says gap. Only after repeated refusals is the API asked why (logged out?).
  async #retry() {
    const source = this.#source;
    if (this.#failures >= 3) await this.#handlers.reconnect();
    // Whoever was asked may have opened another one, or closed this.
    if (this.#url && this.#source === source) this.#connect();
  }
}
