// Draws the chain of versions: newest on the right, arrows back, labels above, consumers below.

import { count, cut, number, picture, plural, svg } from "./elements.js";

const NODE = { width: 84, height: 50 };
const FLAG = 26;
const PILL = 26;
const SHOWN = 4; // consumers drawn below a version; the rest are counted

const short = (text) => cut(text, 20);
const textWidth = (text) => text.length * 7 + 22;

function places(data) {
  const by = new Map(data.versions.map((v) => [v.version, []]));
  for (const consumer of data.consumers) by.get(consumer.version)?.push(consumer);
  return by;
}

export const broken = (consumer) => consumer.probe?.holds === false;

export const states = (version, data) => [
  ...(version.version === data.newest ? ["newest"] : []),
  ...(version.version === data.production ? ["production"] : []),
  ...(version.withdrawn !== null ? ["withdrawn"] : version.retired ? ["retired"] : []),
];

const text = (x, y, value, name, anchor = "middle") =>
  svg("text", { x, y, class: name, "text-anchor": anchor }, value);

function flag(x, y, label, i) {
  const top = y - (i + 1) * FLAG - 6;
  const width = textWidth(short(label));
  return svg("g", {},
    svg("path", { d: `M${x} ${y} V${top}`, class: "pole" }),
    svg("path", {
      d: `M${x} ${top} h${width} l-7 10 l7 10 h-${width} z`, class: "flag",
    }),
    text(x + 8, top + 14.5, short(label), "flag-text", "start"));
}

function hanging(x, y, consumers) {
  const shown = consumers.slice(0, SHOWN);
  const more = consumers.length - shown.length;
  const parts = [];
  shown.forEach((consumer, i) => {
    const bad = broken(consumer);
    const name = short(consumer.name) + (bad ? " ✕" : "");
    const width = textWidth(name);
    const top = y + 12 + i * PILL;
    parts.push(
      svg("rect", {
        x: x - width / 2, y: top, width, height: 20, rx: 10, class: bad ? "pill bad" : "pill",
      }),
      text(x, top + 14, name, bad ? "pill-text bad" : "pill-text"));
  });
  if (more > 0) parts.push(text(x, y + 26 + SHOWN * PILL, `and ${count(more)} more`, "small"));
  if (!consumers.length) return [];
  return [svg("path", { d: `M${x} ${y} v12`, class: "pole" }), ...parts];
}

function arrow(from, to, y, step) {
  const middle = (from + to) / 2;
  const error = step.error ?? step.estimate;
  return svg("g", {},
    svg("path", { d: `M${from} ${y} H${to + 9}`, class: "arrow" }),
    svg("path", { d: `M${to + 3} ${y} l9 -5 v10 z`, class: "arrow-head" }),
    // A withdrawn version has no step: the next one leads to the version before it.
    step.kind === "identity"
      ? null : text(middle, y - 9, number(error), error === null ? "small" : "value"),
    text(middle, y + 18, step.kind.replaceAll("_", " "), "small"));
}

export function drawChain(node, note, data) {
  const by = places(data);
  const flags = Math.max(0, ...data.versions.map((v) => v.labels.length));
  const deep = Math.max(0, ...[...by.values()].map((c) => Math.min(c.length, SHOWN + 1)));
  const column = Math.max(224, Math.min(280, node.clientWidth / data.versions.length));
  const top = 12 + flags * FLAG;
  const middle = top + NODE.height / 2;
  const under = top + NODE.height;
  const width = Math.round(column * data.versions.length);
  const height = under + 30 + (deep ? 12 + deep * PILL : 0);
  const x = (i) => column * (i + 0.5);
  const parts = [];
  data.versions.forEach((version, i) => {
    const here = states(version, data);
    const left = x(i) - NODE.width / 2;
    version.labels.forEach((label, j) => parts.push(flag(left + 12, top, label, j)));
    const gone = version.withdrawn !== null || version.retired;
    const kind = gone ? "node gone" : here.includes("production") ? "node production" : "node";
    parts.push(
      svg("rect", { x: left, y: top, ...NODE, rx: 10, class: kind }),
      text(x(i), middle - 2, `v${version.version}`, `${kind} node-name`),
      text(x(i), middle + 15, `${version.dim} dims`, `${kind} node-dim`),
      text(x(i), under + 18, here.join(" · "), "small"));
    if (i && version.step) {
      parts.push(arrow(left - 5, x(i - 1) + NODE.width / 2 + 2, middle, version.step));
    }
    parts.push(...hanging(x(i), under + (here.length ? 24 : 4), by.get(version.version)));
  });
  const pinned = data.versions.filter((v) => by.get(v.version).length)
    .map((v) => `v${v.version} by ${count(by.get(v.version).length)}`);
  const who = pinned.length ? `Pinned: ${pinned.join(", ")}.` : "Nobody is pinned to a version yet.";
  const description = [
    `${plural(data.versions.length, "version")}. Newest ${data.newest}, production ${data.production}.`,
    ...data.versions.filter((v) => v.labels.length)
      .map((v) => `Version ${v.version} is labelled ${v.labels.join(" and ")}.`),
    who,
    "The table below has the error of every step.",
  ].join(" ");
  // A refresh keeps the scroll position; the first drawing shows the newest version.
  const before = node.querySelector("svg") ? node.scrollLeft : Number.MAX_SAFE_INTEGER;
  node.replaceChildren(
    picture(width, height, `Chain of versions of ${data.lineage}`, description, ...parts));
  node.scrollLeft = before;
  note.textContent = who;
}
