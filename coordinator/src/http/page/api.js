// Requests to this server, and its streams, read.

const KEY = "laguna-key";

/** A refusal or a failure, in the server's words. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Keeps the API key until the tab is closed. */
export function useKey(key) {
  sessionStorage.setItem(KEY, key.trim());
}

/** The cluster's state. Never an error status: see `/cluster` in the server. */
export async function cluster(signal) {
  const response = await fetch("/cluster", { signal, cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** The chunks of a chat completion, as they come. Aborting `signal` ends the request on the server too. */
export async function* chat(body, signal) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  const request = { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await fetch("/v1/chat/completions", request).catch((error) => {
    throw error.name === "AbortError" ? error : new ApiError("The server can’t be reached. Is it still running?");
  });
  if (!response.ok) throw await refusal(response);
  let done = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, { status: 200, code: chunk.error.code });
    yield chunk;
  }
  if (!done) throw new ApiError("The connection ended in the middle of the answer.");
}

/** The data of each server-sent event. Comments and empty lines say only that the server is alive. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ApiError("The connection was lost in the middle of the answer.");
      });
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  const message = error.message ?? `The server answered ${response.status}.`;
  return new ApiError(message, { status: response.status, code: error.code, retryAfter });
}
