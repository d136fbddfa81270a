// The page: asks what is served, then asks whatever the user asks.

import { Answer } from "./answer.js";
import { fetchCard, Refusal, setKey } from "./api.js";
import { hideDetails } from "./details.js";
import { element } from "./format.js";
import { otherFields, Settings } from "./settings.js";
import { watchStatus } from "./status.js";
import { tierClass } from "./tokens.js";

const MAX_TURNS = 20;
const find = (id) => document.getElementById(id);
const [form, question, stop, turns, news] = ["ask", "question", "stop", "turns", "news"].map(find);

let card = null;
let settings = null;
let running = null;
const past = [];

async function meet() {
  try {
    card = await fetchCard();
    if (card.allroads === null) throw new Refusal("The mesh is not ready yet.");
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    card = null;
    turns.replaceChildren(element("p", error.message, "error", { role: "alert" }));
    return;
  }
  turns.querySelector(":scope > .error")?.remove();
  settings = new Settings(card.allroads);
  find("model").textContent = card.id;
  find("legend").replaceChildren(...card.allroads.tiers.map(legendEntry));
}

function legendEntry({ name, model, num_parameters: count }, tier, tiers) {
  const entry = element("li");
  const size = Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(count);
  entry.append(element("span", name, `token ${tierClass(tier, tiers.length)}`), ` ${model}, ${size}`);
  return entry;
}

function plans() {
  const chosen = settings.plan();
  if (!find("compare").checked) return [chosen];
  const { policies, tiers } = card.allroads;
  const alone = (name, label) => ({ label, routing: { policy: name }, threshold: null });
  const served = (name) => policies.some((policy) => policy.name === name);
  return [
    ...(served("slm") ? [alone("slm", `${tiers[0].name} alone`)] : []),
    chosen,
    ...(served("llm") ? [alone("llm", `${tiers.at(-1).name} alone`)] : []),
  ];
}

async function ask() {
  const asked = question.value.trim();
  if (running || !asked) return;
  if (!settings) await meet();
  if (!settings) return;
  running = new AbortController();
  stop.disabled = false;
  news.textContent = "Asked; the answer is being written.";
  const turn = element("article", "", "turn");
  const columns = element("div", "", "columns");
  turn.append(element("h2", asked), columns);
  turns.prepend(turn);
  while (turns.childElementCount > MAX_TURNS) turns.lastElementChild.remove();
  const answers = plans().map((plan) => {
    const column = element("section", "", "answer");
    columns.append(column);
    return { plan, answer: new Answer(column, card.allroads.tiers, plan) };
  });
  const earlier = find("remember").checked ? past.flat() : [];
  const messages = [...earlier, { role: "user", content: asked }];
  const fields = { model: card.id, messages, ...otherFields() };
  try {
    const endings = await Promise.all(answers.map(({ answer }) => answer.run(fields, running.signal)));
    news.textContent = endings.join(" ");
    const kept = answers[answers.length > 1 ? 1 : 0].answer.text;
    if (kept) past.push([messages.at(-1), { role: "assistant", content: kept }]);
    past.splice(0, past.length - MAX_TURNS);
  } finally {
    running = null;
    if (document.activeElement === stop) question.focus();
    stop.disabled = true;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  hideDetails();
  running?.abort();
});
stop.addEventListener("click", () => running?.abort());
find("key").addEventListener("change", ({ target }) => {
  setKey(target.value);
  if (!settings) meet();
});

find("settings").open = matchMedia("(min-width: 56rem)").matches;
question.focus();
await meet();
watchStatus();
