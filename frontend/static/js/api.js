// Talking JSON with the server. One way to ask, one kind of error.

export class ApiError extends Error {
  constructor(message, status) { super(message); this.name = "ApiError"; this.status = status; }
}

/** GET a JSON document. A 401 loads the page again, which leads to the login and from there back to it; other failures throw ApiError with the server's own words. */
export function getJson(path, { signal } = {}) { return ask(path, { signal }); }

/** POST, PATCH or DELETE with a JSON body; the answer, null for an empty one. Throws as getJson. */
export function send(method, path, body) {
  return ask(path, { method, ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }) });
}

async function ask(path, { headers, ...options }) {
  let response;
  try { response = await fetch(path, { ...options, headers: { Accept: "application/json", ...headers }, cache: "no-store" }); } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("Tidegate does not answer; is it still running?", 0);
  }
  if (response.status === 401) { location.reload(); throw new ApiError("not logged in", 401); }
  if (response.status === 204) return null;
  let body = null;
  try { body = await response.json(); } catch (error) { if (error.name === "AbortError") throw error; }
  if (!response.ok || body === null) throw new ApiError(body?.error || `${path}: ${response.status}`, response.status);
  return body;
}

/** A path under /api with its parts escaped: names are text that an agent chose. */
export function path(...parts) { return "/" + parts.map((part) => encodeURIComponent(part)).join("/"); }

/** Decode {"dtype":"f8","bdata":base64 of little-endian doubles} to a Float64Array; empty when absent. */
export function decodeF8(column) {
  if (!column?.bdata) return new Float64Array(0);
  const text = atob(column.bdata);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float64Array(bytes.buffer);
}
