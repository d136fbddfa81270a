// Talks to the gateway: what is served, how it goes there, and answers while they are written.

let key = "";

/** The API key for all requests from now on. It is kept in this variable and nowhere else. */
export function setKey(value) {
  key = value.trim();
}

/** Why there is no answer, in words; `isStop` where the user wanted it so. */
export class Refusal extends Error {
  constructor(words, { isStop = false } = {}) {
    super(words);
    this.isStop = isStop;
  }
}

/** The served model's card, as `GET /v1/models` has it. */
export async function fetchCard() {
  const response = await send("v1/models");
  return (await response.json()).data[0];
}

/** What `GET /v1/admission` and `GET /metrics` say; metrics without labels, by name. */
export async function fetchStatus() {
  const [admission, metrics] = await Promise.all([send("v1/admission"), send("metrics")]);
  const lines = (await metrics.text()).matchAll(/^(allroads_\w+) (\S+)$/gm);
  return {
    admission: await admission.json(),
    metrics: Object.fromEntries(Array.from(lines, ([, name, value]) => [name, Number(value)])),
  };
}

/** Chunks of a streamed chat, until its end. Throws a Refusal where that does not come. */
export async function* streamChat(fields, signal) {
  const body = JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true } });
  const headers = { "Content-Type": "application/json" };
  const response = await send("v1/chat/completions", { method: "POST", body, headers, signal });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(sentence(chunk.error.message));
      yield chunk;
    }
  } catch (error) {
    throw asRefusal(error, "The connection broke.");
  }
  throw new Refusal("The connection ended before the answer did.");
}

async function send(path, { headers = {}, ...options } = {}) {
  const own = key ? { Authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...own }, cache: "no-store" });
  } catch (error) {
    throw asRefusal(error, "The gateway cannot be reached.");
  }
  if (!response.ok) throw new Refusal(await reason(response));
  return response;
}

async function reason(response) {
  const body = await response.json().catch(() => ({}));
  const message = sentence(body.error?.message ?? `the gateway answered ${response.status}`);
  const seconds = Number(response.headers.get("Retry-After"));
  const when = seconds ? ` Try again in ${seconds} s.` : "";
  if (response.status === 401) return `${message} Put an API key into the settings.`;
  if (response.status === 429) return `There is no room now: ${message}${when}`;
  return `${message}${when}`;
}

function asRefusal(error, words) {
  if (error instanceof Refusal) return error;
  return error.name === "AbortError" ? new Refusal("Stopped.", { isStop: true }) : new Refusal(words);
}

function sentence(message) {
  return /[.!?]$/.test(message) ? message : `${message}.`;
}

/** The data of a stream's events; comments are left out. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
