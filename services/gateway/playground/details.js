// The little window that tells of one token: who wrote it, how likely it was, and what the router said.

import { chance, element, quoted, rows, short } from "./format.js";

const root = document.getElementById("details");
let owner = null;

/** Tell of a token, beside it. */
export function showDetails(token, facts) {
  hideDetails();
  const list = element("dl");
  list.append(
    ...rows([
      ["written by", facts.name],
      ["probability", chance(facts.entry.logprob)],
      ...scoreRows(facts),
      ...facts.entry.top_logprobs.map((top, rank) => [
        `${rank + 1}. choice`,
        `${quoted(top.token)} ${chance(top.logprob)}`,
      ]),
    ]),
  );
  root.replaceChildren(element("strong", quoted(facts.entry.token)), list);
  root.hidden = false;
  token.setAttribute("aria-describedby", root.id);
  owner = token;
  place(token);
}

export function hideDetails() {
  root.hidden = true;
  owner?.removeAttribute("aria-describedby");
  owner = null;
}

function scoreRows({ score, threshold }) {
  if (score === null) return [];
  const judged = ["router score", short(score)];
  return threshold === null ? [judged] : [judged, ["threshold", short(threshold)]];
}

/** Below the token, or above it where there is no room, and never out of sight. */
function place(token) {
  const margin = 8;
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - root.offsetWidth - margin);
  const below = box.bottom + margin;
  const fits = below + root.offsetHeight < window.innerHeight;
  root.style.left = `${Math.max(margin, left)}px`;
  root.style.top = `${Math.max(margin, fits ? below : box.top - root.offsetHeight - margin)}px`;
}

window.addEventListener("scroll", () => owner && place(owner), { passive: true });
