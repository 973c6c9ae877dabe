// Asks for the data every few seconds while the page is looked at, and draws what has changed.

import { drawChain } from "./chain.js";
import { drawErrors, drawQuality, drawRates } from "./charts.js";
import { at, count, date, html, number, table, time } from "./elements.js";
import { drawHealth, drawStale } from "./health.js";
import {
  drawAlignment, drawConsumers, drawFacts, drawQualities, drawStore, drawTraffic, drawVersions,
  summary,
} from "./tables.js";

const EVERY = 2000; // milliseconds from one answer to the next question
const PATIENCE = 10000; // until a question is given up
const WINDOW = 600; // seconds of request rates that are kept
const KEY = "evergram-token";

let data = null;
let drawn = ""; // the lineage's part of the data as it was last drawn
let seen = []; // { at: seconds, total: requests }, oldest first
let timer = null;
let asking = false;
let given = false; // whether the person has just given the token that is tried now

const total = (live) => live.traffic?.reduce((sum, t) => sum + t.requests, 0) ?? null;

function remember() {
  const now = { at: Date.parse(data.at) / 1000, total: total(data.live) };
  const last = seen.at(-1);
  // A count that fell is of a service that was started anew.
  if (now.total === null || (last && (now.total < last.total || now.at < last.at))) seen = [];
  if (now.total !== null) seen.push(now);
  seen = seen.filter((point) => point.at >= now.at - WINDOW);
}

// As the service counted them; where it does not say, as this page has seen them.
function rates() {
  if (data.live.rates !== null) return data.live.rates.map((r) => [r.ago, r.per_minute]);
  if (total(data.live) === null) return null;
  const now = seen.at(-1).at;
  return seen.slice(1).map((point, i) => {
    const before = seen[i];
    const minutes = (point.at - before.at) / 60;
    return [now - point.at, minutes > 0 ? (point.total - before.total) / minutes : 0];
  });
}

function lastMinute() {
  const told = data.live.traffic?.map((t) => t.per_minute) ?? [null];
  if (!told.includes(null)) return told.reduce((sum, rate) => sum + rate, 0);
  const recent = seen.filter((point) => point.at >= seen.at(-1).at - 60);
  if (recent.length < 2) return null;
  const minutes = (recent.at(-1).at - recent[0].at) / 60;
  return minutes > 0 ? (recent.at(-1).total - recent[0].total) / minutes : null;
}

function metrics() {
  const found = new Set(data.versions.flatMap((v) => Object.keys(v.quality.model ?? {})));
  return [...found];
}

function drawMetric() {
  const metric = at("metric").value;
  drawQuality(at("quality"), data.versions, metric);
  drawQualities(data, metric);
}

function offerMetrics() {
  const choice = at("metric");
  const before = choice.value;
  const names = metrics();
  choice.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
  if (names.includes(before)) choice.value = before;
  choice.parentElement.hidden = names.length < 2;
}

function drawPictures() {
  drawChain(at("chain"), at("pinned"), data);
  drawMetric();
  drawErrors(at("errors"), data.versions, data.newest);
}

function drawRate() {
  const points = rates();
  drawRates(at("rates"), points);
  table(at("rate-table"), "Requests a minute, latest first", ["seconds ago", "requests a minute"],
    (points ?? []).toReversed().map(([ago, rate]) => [count(Math.round(ago)), number(rate)]),
    { numeric: [0, 1], empty: "Not known yet." });
}

function draw() {
  const { live, at: when, ...lasting } = data;
  at("enter").hidden = true;
  at("board").hidden = false;
  at("name").textContent = data.lineage;
  document.title = `${data.lineage} · Evergram`;
  at("summary").textContent = summary(data);
  at("updated").textContent = `Updated ${time(when)}, files checked ${date(data.checked).textContent} ${time(data.checked)}`;
  const fingerprint = JSON.stringify(lasting);
  if (fingerprint !== drawn) {
    offerMetrics();
    drawPictures();
    drawVersions(data);
    drawAlignment(data);
    drawConsumers(data);
    drawn = fingerprint;
  }
  drawHealth(data.health);
  drawFacts(data, lastMinute());
  drawRate();
  drawTraffic(live);
  drawStore(live);
}

function say(sentence) {
  // Said once, not at every try: a live region speaks when it changes.
  if (at("status").textContent !== sentence) at("status").textContent = sentence;
}

function askForToken() {
  sessionStorage.removeItem(KEY);
  at("forget").hidden = true;
  at("board").hidden = true;
  at("enter").hidden = false;
  at("refused").textContent = given ? "The service does not know this token." : "";
  given = false;
  data = null;
  drawn = "";
  seen = [];
  for (const id of ["summary", "updated"]) at(id).textContent = "";
  at("name").textContent = "Dashboard";
  document.title = "Evergram";
  say("");
  at("token").value = "";
  at("token").focus();
}

function failed(reason) {
  const kept = data ? ` What is shown is from ${time(data.at)}.` : "";
  drawStale();
  say(`The dashboard could not be refreshed: ${reason}.${kept} It tries again every few seconds.`);
}

async function ask() {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) };
  let answer;
  try {
    answer = await fetch("v1/dashboard", options);
    if (answer.ok) data = await answer.json();
  } catch (error) {
    failed(error.name === "TimeoutError" ? "the service did not answer in time" : "the service cannot be reached");
    return true;
  }
  if (answer.status === 401) {
    askForToken();
    return false;
  }
  if (!answer.ok) {
    failed(answer.status === 403
      ? "this token may not see it" : `the service answered with error ${answer.status}`);
    at("forget").hidden = !token;
    return true;
  }
  given = false;
  at("forget").hidden = !token;
  remember();
  draw();
  say("");
  return true;
}

async function refresh() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  let again = true;
  try {
    again = await ask();
  } finally {
    asking = false;
    if (again) timer = setTimeout(refresh, EVERY);
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  at("refused").textContent = "";
  given = true;
  refresh().then(() => data && at("main").focus());
});
at("forget").addEventListener("click", () => {
  clearTimeout(timer);
  askForToken();
});
at("metric").addEventListener("change", drawMetric);
document.addEventListener("visibilitychange", refresh);

let width = 0;
new ResizeObserver(() => {
  if (!data || width === at("main").clientWidth) return;
  width = at("main").clientWidth;
  drawPictures();
  drawRate();
}).observe(at("main"));

refresh();
