// One answer while it is written and after: its tokens, and what they took.

import { Refusal, streamChat } from "./api.js";
import { savedFull, savedPublished } from "./cost.js";
import { element, percent, rows, seconds, short } from "./format.js";
import { TokenList } from "./tokens.js";

const NUM_CHOICES = 3;

/** An answer in `root`, by the tiers of a mesh. `plan` is what the settings say of it: label, routing, threshold. */
export class Answer {
  constructor(root, tiers, plan) {
    this.text = "";
    this._tiers = tiers;
    this._plan = plan;
    this._heading = element("h3", plan.label);
    this._state = element("span", "…", "state");
    this._heading.append(" ", this._state);
    const list = element("div", "", "tokens", { role: "listbox", "aria-label": `Tokens, ${plan.label}` });
    this._figures = element("dl", "", "figures");
    const names = tiers.map((tier) => tier.name);
    this._tokens = new TokenList(list, names, plan.threshold);
    this._root = root;
    root.append(this._heading, list, this._figures);
  }

  /** Ask, and show what comes. What became of it, in words. */
  async run(fields, signal) {
    const sent = performance.now();
    try {
      const body = {
        ...fields,
        logprobs: true,
        top_logprobs: NUM_CHOICES,
        routing: { ...this._plan.routing, report_tokens: true, report_scores: true },
      };
      for await (const chunk of streamChat(body, signal)) this._take(chunk, performance.now() - sent);
      this._close();
      return `The answer of ${this._plan.label} is complete: ${this.text} ${this._share()}`;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this._state.textContent = error.isStop ? "stopped" : "failed";
      if (!error.isStop) this._root.append(element("p", error.message, "error", { role: "alert" }));
      return error.isStop ? "Stopped." : "";
    }
  }

  _take(chunk, afterMs) {
    if (chunk.usage) this._usage = chunk.usage;
    const [choice] = chunk.choices;
    if (!choice) return;
    this.text += choice.delta.content ?? "";
    if (choice.finish_reason) {
      this._reason = choice.finish_reason;
      this._account = chunk.routing;
      return;
    }
    const entries = choice.logprobs?.content ?? [];
    if (!entries.length) return;
    this._tokens.add(entries, chunk.routing.tiers, chunk.routing.scores);
    this._first ??= { ms: afterMs, tokens: this._tokens.length };
    this._lastMs = afterMs;
    this._showFigures();
  }

  _close() {
    if (this._reason === "stop") this._tokens.finish(this.text);
    this._state.textContent = this._reason === "length" ? "cut short: no more tokens were allowed" : "";
    this._showFigures();
    if (this._account) this._root.append(this._accountBlock());
  }

  _showFigures() {
    const perSecond = (1000 * (this._tokens.length - this._first?.tokens)) / (this._lastMs - this._first?.ms);
    this._figures.replaceChildren(
      ...rows([
        ["LLM share", this._share()],
        ["tokens/s", short(perSecond)],
        ["first token", seconds(this._first?.ms / 1000)],
        ["cost saved", percent(savedPublished(this._tokens.counts, this._parameters))],
      ]),
    );
  }

  _share() {
    const [small, ...larger] = this._tokens.counts;
    const large = larger.reduce((sum, count) => sum + count, 0);
    return `${percent(large / (small + large))} of ${small + large} tokens`;
  }

  get _parameters() {
    return this._tiers.map((tier) => tier.num_parameters);
  }

  /** The reply's `routing` block in words; what the mesh gave no account of is left out. */
  _accountBlock() {
    const account = this._account;
    const known = [
      ["mode", account.mode],
      ["written", pairs(account.tokens)],
      ["computed positions", account.computed_tokens?.map(short).join(", ")],
      ["scored proposals", account.scored_tokens],
      ["turned down", account.rejected_tokens],
      ["hand-offs", account.hand_offs],
      ["confirmed", account.confirmed_hand_offs],
      ["made ahead", account.ahead_tokens],
      ["drafts judged, accepted", account.drafts && `${account.drafts.judged}, ${account.drafts.accepted}`],
      ["prompt", this._usage && `${this._usage.prompt_tokens} tokens`],
      ["cost saved, all positions", account.computed_tokens && this._usage && this._savedFull()],
      ["degraded", account.degraded ? "yes: a larger model was out of reach" : null],
    ].filter(([, value]) => value !== null && value !== undefined);
    const block = element("details");
    const list = element("dl", "", "figures");
    list.append(...rows(known.map(([term, value]) => [term, String(value)])));
    block.append(element("summary", "What that took"), list);
    return block;
  }

  _savedFull() {
    return percent(savedFull(this._account.computed_tokens, this._parameters, this._usage));
  }
}

function pairs(counts) {
  return Object.entries(counts)
    .map(([name, count]) => `${name} ${count}`)
    .join(", ");
}
