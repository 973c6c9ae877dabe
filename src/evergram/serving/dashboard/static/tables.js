// All tables, and the facts at the top.

import { broken, states } from "./chain.js";
import { UNKNOWN, at, count, date, html, lasting, number, plural, table } from "./elements.js";

const version = (n) => (n === null ? UNKNOWN : `v${n}`);

export function drawFacts(data) {
  const errors = data.versions.filter((v) => v.past)
    .map((v) => v.past.error ?? v.past.estimate).filter((v) => v !== null);
  const failing = data.consumers.filter(broken).length;
  const past = data.versions.some((v) => v.past);
  const facts = [
    ["Production", `v${data.production}`, data.production === data.newest ? "the newest" : `newest is v${data.newest}`],
    ["Consumers", count(data.consumers.length), failing ? `✕ ${plural(failing, "probe fails", "probes fail")}` : "no probe fails"],
    ["Largest error", past ? (errors.length ? number(Math.max(...errors)) : UNKNOWN) : "none", past ? "of any past version, on objects that alignment never saw" : "no past version yet"],
  ];
  at("facts").replaceChildren(...facts.map(([name, value, note]) =>
    html("div", {}, html("dt", {}, name), html("dd", {},
      html("span", { class: value === UNKNOWN ? "big unknown" : "big" }, value),
      html("span", { class: note.startsWith("✕") ? "bad" : "muted" }, note)))));
}

// A withdrawn version's step is the identity, so it has no error.
const step = (s) => s && s.kind !== "identity"
  ? [number(s.error), number(s.estimate), number(s.amplification)] : ["–", "–", "–"];

export function drawVersions(data) {
  const pinned = (version) => data.consumers.filter((c) => c.version === version).length;
  table(at("versions"), "Versions, newest first",
    ["version", "state", "labels", "created", "dims", "encoder", "transform", "error", "estimated error", "amplification", "consumers", "fingerprint"],
    data.versions.toReversed().map((v) => [
      `v${v.version}`,
      [...states(v, data), ...(v.withdrawn ? [`(${v.withdrawn})`] : [])].join(" "),
      v.labels.join(", "),
      date(v.created),
      count(v.dim),
      v.encoder ?? "–",
      v.step ? v.step.kind.replaceAll("_", " ") : "–",
      ...step(v.step),
      count(pinned(v.version)),
      html("code", {}, v.fingerprint),
    ]), { numeric: [4, 7, 8, 9, 10] });
}

const WHO = ["model", "popularity", "alone"];

// A metric's value, with ± its standard error if it was measured on a sample of queries.
function measured(v, who, metric) {
  const error = v.errors?.[who]?.[metric];
  return number(v.quality[who]?.[metric]) + (error === undefined ? "" : ` ±${number(error)}`);
}

export function drawQualities(data, metric) {
  const sampled = data.versions.some((v) => v.sample);
  table(at("qualities"), metric ? `${metric} by version, newest first` : "Quality by version",
    ["version", "the version", "popularity", "without alignment", ...(sampled ? ["queries"] : [])],
    metric
      ? data.versions.filter((v) => v.withdrawn === null).toReversed().map((v) =>
        [`v${v.version}`, ...WHO.map((who) => measured(v, who, metric)),
          ...(sampled ? [v.sample ?? "–"] : [])])
      : [], { numeric: [1, 2, 3], empty: "Quality was not measured." });
}

export function drawAlignment(data) {
  const past = data.versions.filter((v) => v.past).toReversed();
  table(at("alignment"), `Version ${data.newest} read as each past version`,
    ["version", "error", "all canaries", "estimate", "bound"],
    past.map(({ version, past: p }) =>
      [`v${version}`, number(p.error), number(p.measured), number(p.estimate), number(p.bound)]),
    { numeric: [1, 2, 3, 4], empty: "There is no past version yet." });
  table(at("certificate"), `Version ${data.newest} read as each past version: certified and measured errors`,
    ["version", "unseen", "error", "cosine", "canaries", "error of all", "estimate", "bound", "amplification", "error since"],
    past.map(({ version, past: p }) => [
      `v${version}`, count(p.unseen), number(p.error), number(p.cosine), count(p.canaries), number(p.measured),
      number(p.estimate), number(p.bound), number(p.amplification),
      Object.entries(p.history).filter(([k]) => Number(k) > version).slice(-3)
        .map(([k, error]) => `v${k}: ${number(error)}`).join(", ") || "–",
    ]), { numeric: [1, 2, 3, 4, 5, 6, 7, 8], empty: "There is no past version yet." });
}

function verdict({ holds, last, limit, failed }) {
  if (failed) return html("span", { class: "bad" }, "✕ could not be run");
  if (holds === false) return html("span", { class: "bad" }, "✕ past the limit");
  if (holds) return "✓ holds";
  return last === null ? "not run on the newest" : "no limit set";
}

function probed(probe) {
  if (!probe) return ["–", "none", "–", "–", "–"];
  const values = Object.entries(probe.values).slice(-3);
  const limit = `${probe.less_is_better ? "at most" : "at least"} ${number(probe.limit)}`;
  return [
    verdict(probe),
    probe.metric,
    number(probe.last),
    probe.limit === null ? "none" : limit,
    values.map(([k, value]) => `v${k}: ${number(value)}`).join(", ") || "–",
  ];
}

function reads({ pinned, version }) {
  if (version === null) return `${pinned}, which does not exist`;
  return pinned === `v${version}` ? pinned : `${pinned} (v${version})`;
}

export function drawConsumers(data) {
  table(at("consumers"), "Consumers and their probes",
    ["consumer", "pinned to", "verdict", "probe", "last value", "limit", "values by version", "since"],
    data.consumers.map((c) => [c.name, reads(c), ...probed(c.probe), date(c.since)]),
    { numeric: [4, 5], empty: "Nobody is pinned to a version yet." });
}

export function drawTraffic(live) {
  const latency = live.latency_ms;
  at("latency").textContent = latency
    ? `Latency: ${number(latency.p50)} ms median (p50), ${number(latency.p99)} ms at the 99th percentile (p99).`
    : "Latency: not known.";
  table(at("traffic"), live.started ? html("span", {}, "Since the service started, ", date(live.started)) : "Since the service started",
    ["consumer", "version", "requests", "errors"],
    live.traffic.map((t) => [
      t.consumer || "(no token)", version(t.version), count(t.requests),
      t.errors ? html("span", { class: "bad" }, `▲ ${count(t.errors)}`) : "0",
    ]), { numeric: [2, 3], empty: "No requests yet." });
}

function state(backfill) {
  if (backfill.state !== "stalled") return backfill.state;
  return html("span", { class: "bad" }, `✕ stalled or died: nothing for ${lasting(backfill.idle)}`);
}

export function drawStore(live) {
  const rows = Object.entries(live.rows ?? {}).flatMap(([side, versions]) =>
    Object.entries(versions).map(([version, n]) => [side, `v${version}`, count(n)]));
  table(at("rows"), "Rows by side and version", ["side", "version", "rows"], rows,
    { numeric: [2], empty: live.rows ? "The store is empty." : "Not known." });
  table(at("backfill"), "Backfill", ["side", "to version", "state", "rows done"],
    live.backfill.map((b) => [b.side, `v${b.version}`, state(b),
      `${count(b.done)} of ${count(b.total)}${b.total ? ` (${Math.floor((100 * b.done) / b.total)} %)` : ""}`]),
    { numeric: [3], empty: "No backfill is running." });
}

export const summary = (data) =>
  `${plural(data.versions.length, "version")}, ${plural(data.consumers.length, "consumer")}`;
