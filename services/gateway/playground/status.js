// How the mesh is doing: asked for now and then, and only while somebody sees it.

import { fetchStatus, Refusal } from "./api.js";
import { percent, rows, short } from "./format.js";

const PAUSE_MS = 3000;
const list = document.getElementById("status");
const block = document.getElementById("settings");
let timer = null;

/** Show the mesh's state from now on. */
export function watchStatus() {
  document.addEventListener("visibilitychange", look);
  block.addEventListener("toggle", look);
  look();
}

async function look() {
  clearTimeout(timer);
  if (document.hidden || !block.open) return;
  timer = setTimeout(look, PAUSE_MS);
  try {
    list.replaceChildren(...rows(facts(await fetchStatus())));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    list.replaceChildren(...rows([["state", error.message]]));
  }
}

function facts({ admission, metrics }) {
  const used = 1 - metrics.allroads_kv_tokens_free / metrics.allroads_kv_tokens_total;
  return [
    ["answered now", `${metrics.allroads_requests_running} of ${short(metrics.allroads_admission_limit)}`],
    ["in line", short(metrics.allroads_requests_waiting)],
    ["tokens/s", short(admission.measured_tokens_per_s)],
    ["larger models launch at", `${admission.thresholds.join(", ") || 1} visits`],
    ["LLM share of late", percent(metrics.allroads_llm_share)],
    ["KV in use", percent(used)],
  ];
}
