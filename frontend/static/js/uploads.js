// Files on their way to the server, one after the other. What the server makes of them are its jobs; no DOM here.

const SAFE = /[^A-Za-z0-9._-]/g;

/** The name under which the server lists a file: see tidegate.runs.jobs.safe_name. */
function safeName(name) { return name.split(/[\\/]/).pop().replace(SAFE, "_").slice(-100).replace(/^[.-]+/, "") || "upload"; }

/** One file: {id, name, file, state: "queued"|"sending"|"failed"|"cancelled", sent, total, error, job}. */
export class Uploads {
  #entries = []; #next = 1; #request = null; #changed; #accepted; #files = new Map();

  /** `changed()` is called whenever an entry changes; `accepted(job)` is the server's answer to a file. */
  constructor(changed, accepted) { this.#changed = changed; this.#accepted = accepted; }

  get entries() { return this.#entries; }
  get active() { return this.#entries.some((entry) => entry.state === "queued" || entry.state === "sending"); }

  add(files) {
    for (const file of files) this.#entries.push({ id: `u${this.#next++}`, name: file.name, file, state: "queued", sent: 0, total: file.size, error: null, job: null });
    this.#changed();
    this.#pump();
  }

  /** The file behind a job of this page, for another try; null after the page was loaded again. */
  fileOf(jobId) { return this.#files.get(jobId) ?? null; }

  remove(entry) { this.#entries = this.#entries.filter((other) => other !== entry); this.#changed(); }

  retry(entry) { Object.assign(entry, { state: "queued", sent: 0, error: null, job: null }); this.#changed(); this.#pump(); }

  /** Stop sending, or do not begin. The server's job of it is ended first (`look()` fetches the jobs, `end(id)` ends one):
   *  a file that only stopped coming would be told as cut off. */
  async cancel(entry, look, end) {
    entry.state = "cancelled";
    this.#changed();
    if (this.#request?.entry === entry && !entry.job) await look();
    if (entry.job) await end(entry.job);
    if (this.#request?.entry === entry) this.#request.xhr.abort();
  }

  /** Find the server's jobs of the files that are being sent, so that each is shown once. Returns the other jobs. */
  match(jobs) {
    const receiving = jobs.filter((job) => job.state === "receiving");
    for (const entry of this.#entries) {
      if (entry !== this.#request?.entry || entry.job) continue;
      const taken = new Set(this.#entries.map((other) => other.job));
      entry.job = receiving.find((job) => job.name === safeName(entry.name) && !taken.has(job.id))?.id ?? null;
    }
    const own = new Set(this.#entries.map((entry) => entry.job).filter(Boolean));
    return jobs.filter((job) => !own.has(job.id));
  }

  #pump() {
    if (this.#request) return;
    const entry = this.#entries.find((one) => one.state === "queued");
    if (!entry) return;
    entry.state = "sending";
    const xhr = new XMLHttpRequest();
    this.#request = { xhr, entry };
    xhr.upload.addEventListener("progress", (event) => { entry.sent = event.loaded; this.#changed(); });
    xhr.addEventListener("loadend", () => { this.#request = null; this.#answered(entry, xhr); this.#pump(); });
    xhr.open("POST", `/api/runs?name=${encodeURIComponent(entry.name.slice(-200))}`);
    xhr.setRequestHeader("Content-Type", "application/octet-stream");
    xhr.setRequestHeader("Accept", "application/json");
    xhr.send(entry.file);
    this.#changed();
  }

  #answered(entry, xhr) {
    if (xhr.status === 401) { location.reload(); return; }
    let body = null;
    try { body = JSON.parse(xhr.responseText); } catch { /* no answer, or none of ours: told below */ }
    if (entry.state === "cancelled") { this.#changed(); return; }
    if (xhr.status === 202 && body?.job) {
      this.#files.set(body.job.id, entry.file);
      this.#accepted(body.job);
      this.remove(entry);
      return;
    }
    entry.state = "failed";
    entry.error = body?.error ?? "The connection broke while the file was being sent. Is Tidegate still running?";
    this.#changed();
  }
}
