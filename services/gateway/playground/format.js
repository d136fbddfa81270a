// Numbers and tokens as people read them, and elements with text in them.

/** An element with text, a class and attributes. Text is never taken for markup. */
export function element(tag, text = "", className = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Rows of a description list. */
export function rows(pairs) {
  return pairs.map(([term, value]) => {
    const row = element("div");
    row.append(element("dt", term), element("dd", value));
    return row;
  });
}

/** Three digits that count, without needless zeros. */
export function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  return Math.abs(number) >= 1000 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
}

export function percent(share) {
  return Number.isFinite(share) ? `${Number((100 * share).toFixed(1))} %` : "–";
}

/** A log-probability as a chance; what is nearly nothing or nearly sure does not look as if it were. */
export function chance(logprob) {
  const share = Math.exp(logprob);
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return share >= 0.9995 && share < 1 ? "> 99.9 %" : percent(share);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? `${Math.round(1000 * value)} ms` : `${short(value)} s`;
}

/** A token between quotation marks, with what cannot be seen made visible. */
export function quoted(text) {
  return `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣")}”`;
}
