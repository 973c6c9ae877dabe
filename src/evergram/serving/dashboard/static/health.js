// The line at the top: the overall state computed by the service, and the reasons with links.

import { at, html, plural } from "./elements.js";

const SIGNS = {
  well: ["✓", "All is well", "well"],
  "not well": ["✕", "Not well", "broken"],
  "not known": ["?", "Not known to be well", "unknown"],
};

function show([sign, words, kind], more, reasons) {
  at("health").className = kind;
  const line = `${sign} ${words}${more}`;
  // Set only on a change, so that screen readers read it once.
  if (at("verdict").textContent !== line) at("verdict").textContent = line;
  const items = reasons.map(({ kind: of, part, sentence }) =>
    html("li", {}, `${of === "broken" ? "✕" : "?"} ${sentence} `,
      html("a", { href: `#${part}-part` }, `See ${part}`)));
  const list = at("reasons");
  // Keep the elements, and so the keyboard focus, while the reasons are the same.
  const before = list.textContent;
  if (before !== items.map((item) => item.textContent).join("")) list.replaceChildren(...items);
  list.hidden = !items.length;
}

export function drawHealth({ state, reasons }) {
  const broken = reasons.filter((reason) => reason.kind === "broken").length;
  const unknown = reasons.length - broken;
  const counts = [
    ...(broken ? [`${broken} broken`] : []),
    ...(unknown ? [`${plural(unknown, "thing")} not measured`] : []),
  ];
  show(SIGNS[state], counts.length ? `: ${counts.join(", ")}` : "", reasons);
}

// The last known state may be out of date.
export const drawStale = () => show(SIGNS["not known"], ": the service does not answer", []);
