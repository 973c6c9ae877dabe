// Helpers to create elements and format values. Text is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const html = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

export const at = (id) => document.getElementById(id);

export const UNKNOWN = "not known";

const three = new Intl.NumberFormat("en", {
  minimumSignificantDigits: 3, maximumSignificantDigits: 3,
});
const whole = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

const missing = (value) => value === null || value === undefined;

export const number = (value) =>
  missing(value) ? UNKNOWN : value === 0 ? "0" : three.format(value);
export const count = (value) => (missing(value) ? UNKNOWN : whole.format(value));
export const time = (value) => clock.format(new Date(value));
export const cut = (text, length) =>
  text.length > length ? `${text.slice(0, length - 1)}…` : text;

// A duration with its unit, rounded.
export function lasting(seconds) {
  if (missing(seconds)) return UNKNOWN;
  const whole = Math.round(Math.abs(seconds));
  if (whole < 120) return `${whole} s`;
  return whole < 7200 ? `${Math.round(whole / 60)} min` : `${Math.round(whole / 3600)} h`;
}

export function date(value) {
  const found = new Date(value);
  if (missing(value) || Number.isNaN(found.getTime())) return UNKNOWN;
  return html("time", { datetime: value }, day.format(found));
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// An image with a title and a description for screen readers.
let named = 0;
export function picture(width, height, title, description, ...children) {
  const id = `picture-${(named += 1)}`;
  return svg(
    "svg",
    {
      role: "img", width, height, viewBox: `0 0 ${width} ${height}`,
      "aria-labelledby": `${id}-t`, "aria-describedby": `${id}-d`,
    },
    svg("title", { id: `${id}-t` }, title),
    svg("desc", { id: `${id}-d` }, description),
    ...children,
  );
}

// rows: lists of cells; the first cell is the row's header. numeric: right-aligned columns.
export function table(node, caption, header, rows, { numeric = [], empty = "Nothing." } = {}) {
  const kind = (i) => (numeric.includes(i) ? "number" : null);
  const body = rows.map((cells) =>
    html("tr", {}, ...cells.map((cell, i) =>
      i === 0
        ? html("th", { scope: "row", class: kind(i) }, cell)
        : html("td", { class: kind(i) }, cell))));
  if (!rows.length) {
    body.push(html("tr", {}, html("td", { colspan: header.length, class: "muted" }, empty)));
  }
  node.replaceChildren(
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...header.map((name, i) =>
      html("th", { scope: "col", class: kind(i) }, name)))),
    html("tbody", {}, ...body),
  );
}
