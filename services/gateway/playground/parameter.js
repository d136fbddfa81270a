// One parameter of a policy: a slider and a number, or a number for each tier.

import { element, short } from "./format.js";

const NUM_STEPS = 1000;
const MOST_BENT = 12;

export class ParameterField {
  constructor(parameter, tiers) {
    this.name = parameter.name;
    this._parameter = parameter;
    const names = parameter.per_tier ? tiers.map((tier) => tier.name) : [parameter.name];
    const starts = [parameter.default ?? names.map(() => middle(parameter))].flat();
    this._numbers = names.map((name, index) => this._number(name, starts[index] ?? middle(parameter)));
    this._starts = this._numbers.map((input) => input.value);
    this.root = parameter.per_tier ? this._group(names) : this._single();
  }

  /** What is to be sent: a number, or a list of one for each tier. An empty field has its default. */
  get value() {
    const values = this._numbers.map((input, index) => Number(input.value || this._starts[index]));
    return this._parameter.per_tier ? values : values[0];
  }

  get text() {
    return [this.value].flat().map(short).join(", ");
  }

  /** Whether the request need not name it. */
  get isDefault() {
    const isUntouched = this._numbers.every((input, index) => !input.value || input.value === this._starts[index]);
    return this._parameter.default !== null && isUntouched;
  }

  _number(name, start) {
    const { minimum, maximum, whole } = this._parameter;
    const input = element("input", "", "", { type: "number", step: whole ? "1" : "any", "aria-label": name });
    if (minimum !== null) input.min = minimum;
    if (maximum !== null) input.max = maximum;
    input.value = Number(start.toPrecision(4));
    return input;
  }

  _single() {
    const root = element("div", "", "field");
    const [number] = this._numbers;
    const slider = this._slider(number);
    const label = element("label", this.name);
    if (slider) {
      slider.id = `parameter-${this.name}`;
      label.htmlFor = slider.id;
      slider.setAttribute("aria-describedby", `${slider.id}-summary`);
    }
    const hint = element("p", this._parameter.summary, "hint", { id: `parameter-${this.name}-summary` });
    const line = element("div", "", "row");
    line.append(...(slider ? [slider] : []), number);
    root.append(label, line, hint);
    return root;
  }

  _group(names) {
    const root = element("fieldset");
    const line = element("div", "", "row");
    names.forEach((name, index) => {
      const label = element("label", `${name} `);
      label.append(this._numbers[index]);
      line.append(label);
    });
    root.append(element("legend", this.name), line, element("p", this._parameter.summary, "hint"));
    return root;
  }

  /** A slider that is in step with the number; none where the range has no end. */
  _slider(number) {
    const { minimum, maximum, whole } = this._parameter;
    if (minimum === null || maximum === null) return null;
    const bend = whole ? 1 : bendFor(Number(number.value), minimum, maximum);
    const steps = whole ? maximum - minimum : NUM_STEPS;
    const slider = element("input", "", "", { type: "range", min: "0", max: String(steps), step: "1" });
    const follow = () => {
      const part = (Number(number.value) - minimum) / (maximum - minimum);
      slider.value = Math.round(steps * Math.min(Math.max(part, 0), 1) ** (1 / bend));
      slider.setAttribute("aria-valuetext", number.value);
    };
    number.addEventListener("input", follow);
    slider.addEventListener("input", () => {
      const value = minimum + (maximum - minimum) * (Number(slider.value) / steps) ** bend;
      number.value = whole ? Math.round(value) : Number(value.toPrecision(3));
      slider.setAttribute("aria-valuetext", number.value);
    });
    follow();
    return slider;
  }
}

/** How a slider is bent, so that a default near the lower end stands in its middle. */
function bendFor(start, minimum, maximum) {
  const part = (start - minimum) / (maximum - minimum);
  return part > 0 && part < 0.5 ? Math.min(Math.log(part) / Math.log(0.5), MOST_BENT) : 1;
}

function middle({ minimum, maximum, whole }) {
  const value = ((minimum ?? 0) + (maximum ?? minimum ?? 0)) / 2;
  return whole ? Math.round(value) : value;
}
