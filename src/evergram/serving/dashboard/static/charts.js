// Two charts: quality and alignment error. Each series has a different mark.

import { html, number, picture, svg } from "./elements.js";

const HEIGHT = 240;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 34 };

const SHAPES = {
  disc: (x, y) => `M${x - 4} ${y} a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0 z`,
  square: (x, y) => `M${x - 3.5} ${y - 3.5} h7 v7 h-7 z`,
  diamond: (x, y) => `M${x} ${y - 5.5} l5 5.5 l-5 5.5 l-5 -5.5 z`,
  bar: (x, y) => `M${x - 7} ${y - 1.25} h14 v2.5 h-14 z`,
};

const mark = (x, y, shape, name, title) =>
  svg("path", { d: SHAPES[shape](x, y), class: `mark ${name}` }, svg("title", {}, title));

// Round numbers from 0 to a little above `top`, four or five of them.
export function ticks(top) {
  if (!(top > 0)) return [0, 1];
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough) * power;
  const found = [];
  for (let i = 0; i * step < top + step * 0.999; i += 1) found.push(i * step);
  return found;
}

function frame(width, top, columns, below) {
  const marks = ticks(top);
  const highest = marks.at(-1);
  const inner = width - MARGIN.left - MARGIN.right;
  const y = (value) =>
    HEIGHT - MARGIN.bottom - (value / highest) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const x = (i) => MARGIN.left + (inner * (i + 0.5)) / columns.length;
  const every = Math.ceil((columns.length * 34) / inner);
  const digits = Math.min(6, (`${Number(marks[1].toPrecision(3))}`.split(".")[1] ?? "").length);
  const parts = marks.flatMap((value) => [
    svg("path", { d: `M${MARGIN.left} ${y(value)} H${width - MARGIN.right}`, class: "grid" }),
    svg("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end", class: "tick" },
      value.toFixed(digits)),
  ]);
  columns.forEach((name, i) => {
    // Counted from the right, so that the newest always has its number.
    if ((columns.length - 1 - i) % every === 0) {
      parts.push(svg("text",
        { x: x(i), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle", class: "tick" }, name));
    }
  });
  if (below) {
    parts.push(svg("text", { x: MARGIN.left, y: HEIGHT - 2, class: "tick" }, below));
  }
  return { x, y, parts };
}

function legend(entries, lined) {
  return html("ul", { class: "legend" }, ...entries.map(([shape, name, label]) =>
    html("li", {},
      svg("svg", { width: 26, height: 14, "aria-hidden": "true" },
        lined ? svg("path", { d: "M0 7 H26", class: `line ${name}` }) : null,
        svg("path", { d: SHAPES[shape](13, 7), class: `mark ${name}` })),
      label)));
}

const nothing = (node, sentence) =>
  node.replaceChildren(html("p", { class: "nothing" }, sentence));

// The points of a line; it is broken where a value is missing.
function line(values, x, y) {
  let drawing = false;
  return values.map((value, i) => {
    if (value === null || value === undefined) {
      drawing = false;
      return "";
    }
    const step = `${drawing ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    drawing = true;
    return step;
  }).join(" ");
}

const SERIES = [
  ["alone", "diamond", "the same, without alignment"],
  ["popularity", "square", "popularity"],
  ["model", "disc", "the version"],
];

export function drawQuality(node, versions, metric) {
  const shown = versions.filter((v) => v.withdrawn === null);
  const series = SERIES
    .map(([name, shape, label]) => [name, shape, label, shown.map((v) => v.quality[name]?.[metric])])
    .filter(([, , , values]) => values.some((v) => v !== undefined));
  if (!metric || !series.length) {
    nothing(node, "Quality was not measured: these versions came from files.");
    return;
  }
  const width = node.clientWidth;
  const top = Math.max(...series.flatMap(([, , , values]) => values.filter((v) => v !== undefined)));
  const { x, y, parts } = frame(width, top, shown.map((v) => `v${v.version}`));
  for (const [name, shape, label, values] of series) {
    parts.push(svg("path", { d: line(values, x, y), class: `line ${name}` }));
    values.forEach((value, i) => {
      if (value !== undefined) {
        const title = `Version ${shown[i].version}, ${label}: ${number(value)}`;
        parts.push(mark(x(i), y(value), shape, name, title));
      }
    });
  }
  const last = shown.at(-1);
  const said = series.map(([, , label, values]) => `${label} ${number(values.at(-1))}`).join(", ");
  node.replaceChildren(
    picture(width, HEIGHT, `${metric} by version`, `At version ${last.version}: ${said}.`, ...parts),
    legend(series.toReversed().map(([name, shape, label]) => [shape, name, label]), true),
  );
}

export function drawErrors(node, versions, newest) {
  const shown = versions.filter((v) => v.past !== null);
  if (!shown.length) {
    nothing(node, "There is no past version yet.");
    return;
  }
  const values = shown.flatMap(({ past }) => [past.error, past.estimate, past.bound])
    .filter((v) => v !== null);
  if (!values.length) {
    nothing(node, "There are no errors to show: no canaries are stored, and no step has a certificate.");
    return;
  }
  const width = node.clientWidth;
  const { x, y, parts } = frame(width, Math.max(...values), shown.map((v) => `v${v.version}`));
  shown.forEach(({ version, past }, i) => {
    const ends = [past.error, past.estimate, past.bound].filter((v) => v !== null);
    if (ends.length > 1) {
      parts.push(svg("path", {
        d: `M${x(i)} ${y(Math.min(...ends))} V${y(Math.max(...ends))}`, class: "range",
      }));
    }
    for (const [name, shape, value] of [
      ["bound", "bar", past.bound],
      ["estimate", "diamond", past.estimate],
      ["error", "disc", past.error],
    ]) {
      if (value !== null) {
        parts.push(mark(x(i), y(value), shape, name, `Version ${version}, ${name}: ${number(value)}`));
      }
    }
  });
  const first = shown[0];
  node.replaceChildren(
    picture(width, HEIGHT, "Alignment error by past version",
      `Version ${newest} read as version ${first.version}: error ${number(first.past.error)}, ` +
      `estimate ${number(first.past.estimate)}, bound ${number(first.past.bound)}.`, ...parts),
    legend([
      ["disc", "error", "error, on objects that alignment never saw"],
      ["diamond", "estimate", "estimate"],
      ["bar", "bound", "bound"],
    ], false),
  );
}
