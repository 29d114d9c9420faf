// The event stream: one EventSource a tab, closed while the page is hidden or paused.

const RETRY_MS = [500, 1000, 2000, 5000];

/** Calls `handlers`: hello(data), frame(data), gap(data), status("connecting"|"open"|"lost"|"paused"). */
export class Stream {
  #source = null; #timer = 0; #failures = 0; #ord = 0; #wanted = false; #handlers;

  constructor(handlers) { this.#handlers = handlers; }

  /** Open after record `ord`. The browser itself resumes with Last-Event-ID; after a refusal we open anew from the last ord. */
  open(ord) {
    this.#wanted = true;
    this.#ord = ord;
    this.#connect();
  }

  close(status = "paused") {
    this.#wanted = false;
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
    this.#handlers.status(status);
  }

  #connect() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#handlers.status("connecting");
    const source = new EventSource(`/api/stream?after=${this.#ord}`);
    this.#source = source;
    source.addEventListener("open", () => { this.#failures = 0; this.#handlers.status("open"); });
    for (const kind of ["hello", "frame", "gap"]) {
      source.addEventListener(kind, (event) => {
        const data = JSON.parse(event.data);
        if (kind === "frame") this.#ord = data.ord;
        this.#handlers[kind](data);
      });
    }
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#handlers.status("lost");
      // Own retries: the browser's pause is several seconds, and after a refusal (a restarting server) it gives up.
      source.close();
      if (!this.#wanted) return;
      const delay = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)];
      this.#timer = setTimeout(() => this.#retry(), delay);
    });
  }

  // The server resumes after our ord, or says gap. Only after repeated refusals is the API asked why (logged out?).
  async #retry() {
    if (this.#failures >= 3) {
      try { await this.#handlers.reconnect(); } catch { /* still away: connecting fails and is tried again */ }
    }
    if (this.#wanted) this.#connect();
  }

  set ord(value) { this.#ord = value; }
}
