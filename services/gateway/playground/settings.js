// The settings: which policy, with which parameters, and the other fields of a request.

import { element } from "./format.js";
import { ParameterField } from "./parameter.js";

const select = document.getElementById("policy");
const summary = document.getElementById("policy-summary");
const parameters = document.getElementById("parameters");

/** Reads and shows the settings of a served model. */
export class Settings {
  constructor(mesh) {
    this._mesh = mesh;
    this._fields = [];
    select.replaceChildren(...mesh.policies.map(({ name }) => element("option", name)));
    select.value = mesh.default_policy;
    select.onchange = () => this._showPolicy();
    this._showPolicy();
  }

  /** What the settings say of the next answer: a label, the request's `routing`, and the threshold in force. */
  plan() {
    const routing = { policy: select.value };
    const mode = document.getElementById("mode").value;
    if (mode) routing.mode = mode;
    for (const field of this._fields) if (!field.isDefault) routing[field.name] = field.value;
    const shown = this._fields.filter((field) => !field.isDefault || field.name === "threshold");
    const label = [select.value, ...shown.map((field) => `${field.name} ${field.text}`), ...(mode ? [mode] : [])];
    const threshold = this._fields.find((field) => field.name === "threshold")?.value ?? null;
    return { label: label.join(", "), routing, threshold };
  }

  _showPolicy() {
    const policy = this._mesh.policies.find(({ name }) => name === select.value);
    summary.textContent = policy.summary;
    this._fields = policy.parameters.map((parameter) => new ParameterField(parameter, this._mesh.tiers));
    parameters.replaceChildren(...this._fields.map((field) => field.root));
  }
}

/** The fields of a request that have nothing to do with routing. */
export function otherFields() {
  const fields = { temperature: Number(document.getElementById("temperature").value) };
  const most = document.getElementById("max-tokens").value;
  if (most) fields.max_tokens = Number(most);
  return fields;
}
