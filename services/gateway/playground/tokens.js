// The tokens of one answer: each in the colour of who wrote it, and each to be looked at by hand, key or mouse.

import { element } from "./format.js";
import { hideDetails, showDetails } from "./details.js";

/** Class of a tier's tokens: the small model's, the large one's, or that of one between. */
export function tierClass(tier, numTiers) {
  if (tier === 0) return "tier-small";
  return tier >= numTiers - 1 ? "tier-large" : "tier-middle";
}

/**
 * A list of tokens in `root`; scores are shown against `threshold`, if there is one. One token is in the order of
 * focus, and arrow keys move it.
 */
export class TokenList {
  constructor(root, tierNames, threshold) {
    this.counts = tierNames.map(() => 0);
    this._root = root;
    this._tierNames = tierNames;
    this._threshold = threshold;
    this._facts = new Map();
    this._decoder = new TextDecoder();
    root.addEventListener("focusin", ({ target }) => this._show(target));
    root.addEventListener("focusout", hideDetails);
    root.addEventListener("mouseover", ({ target }) => this._show(target));
    root.addEventListener("mouseout", () => this._show(document.activeElement));
    root.addEventListener("click", ({ target }) => this._facts.has(target) && this._focus(target));
    root.addEventListener("keydown", (event) => this._onKey(event));
  }

  get length() {
    return this._facts.size;
  }

  /** Add what a chunk brought: parallel lists of entries of `logprobs`, of tiers and of scores. */
  add(entries, tiers, scores) {
    entries.forEach((entry, index) => {
      const tier = tiers[index] ?? 0;
      const text = this._decoder.decode(new Uint8Array(entry.bytes), { stream: true });
      const name = this._tierNames[tier] ?? `tier ${tier}`;
      const token = element("span", text, `token ${tierClass(tier, this._tierNames.length)}`, {
        role: "option",
        "aria-selected": "false",
        "aria-label": `${text}, ${name}`,
        tabindex: this.length ? "-1" : "0",
      });
      this.counts[tier] = (this.counts[tier] ?? 0) + 1;
      this._facts.set(token, { entry, tier, name, score: scores[index] ?? null });
      this._root.append(token);
    });
  }

  /** The answer is over: its last token is shown as an end where it is none of the text. */
  finish(text) {
    const last = this._root.lastElementChild;
    if (last && last.textContent.trim() && !text.endsWith(last.textContent)) {
      last.setAttribute("aria-label", `end of the answer, ${this._facts.get(last).name}`);
      last.textContent = "end";
      last.classList.add("end");
    }
  }

  _show(target) {
    const facts = this._facts.get(target);
    if (facts) showDetails(target, { ...facts, threshold: this._threshold });
    else hideDetails();
  }

  _onKey(event) {
    const tokens = [...this._facts.keys()];
    const at = tokens.indexOf(event.target);
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: -1 };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    this._focus(event.key === "End" ? tokens.at(-1) : tokens[steps[event.key]]);
  }

  _focus(token) {
    if (!token) return;
    for (const other of this._root.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    token.tabIndex = 0;
    token.focus();
  }
}
