// The line at the top: whether all is well, as the service decided, and the reasons with links.

import { at, html, plural } from "./elements.js";

const SIGNS = {
  well: ["✓", "All is well", "well"],
  "not well": ["✕", "Not well", "broken"],
  "not known": ["?", "Not known to be well", "unknown"],
};

function show([sign, words, kind], more, reasons) {
  at("health").className = kind;
  const line = `${sign} ${words}${more}`;
  // Said once, not at every refresh.
  if (at("verdict").textContent !== line) at("verdict").textContent = line;
  const items = reasons.map(({ kind: of, part, sentence }) =>
    html("li", {}, `${of === "broken" ? "✕" : "?"} ${sentence} `,
      html("a", { href: `#${part}-part` }, `See ${part}`)));
  const list = at("reasons");
  // The focus stays on its link while the reasons are the same.
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

// What was true at the last refresh need not be true now.
export const drawStale = () => show(SIGNS["not known"], ": the service does not answer", []);
