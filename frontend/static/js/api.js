// Fetching JSON. One way to ask, one kind of error.

export class ApiError extends Error {
  constructor(message, status) { super(message); this.name = "ApiError"; this.status = status; }
}

/** GET a JSON document. A 401 leads to the login page; other failures throw ApiError with the server's own words. */
export async function getJson(path, { signal } = {}) {
  const response = await fetch(path, { signal, headers: { Accept: "application/json" }, cache: "no-store" });
  if (response.status === 401) { location.assign("/login"); throw new ApiError("not logged in", 401); }
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
