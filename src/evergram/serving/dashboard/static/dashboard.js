// Polls the data every few seconds while the page is visible, and redraws what has changed.

import { drawChain } from "./chain.js";
import { drawErrors, drawQuality } from "./charts.js";
import { at, date, html, time } from "./elements.js";
import { drawHealth, drawStale } from "./health.js";
import {
  drawAlignment, drawConsumers, drawFacts, drawQualities, drawStore, drawTraffic, drawVersions,
  summary,
} from "./tables.js";

const EVERY = 2000; // milliseconds from one answer to the next request
const PATIENCE = 10000; // time-out of a request in milliseconds
const KEY = "evergram-token";

let data = null;
let drawn = ""; // JSON of the data last drawn, without its live part
let timer = null;
let asking = false;
let given = false; // whether the user has just entered the current token

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
  drawFacts(data);
  drawTraffic(live);
  drawStore(live);
}

function say(sentence) {
  // Set only on a change, because screen readers read a live region each time it is set.
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
  for (const id of ["summary", "updated"]) at(id).textContent = "";
  at("name").textContent = "Dashboard";
  document.title = "Evergram";
  say("");
  at("token").value = "";
  at("token").focus();
}

function failed(reason) {
  const shown = data ? ` This data is from ${time(data.at)}.` : "";
  drawStale();
  say(`The dashboard could not be refreshed: ${reason}.${shown} It tries again every few seconds.`);
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
}).observe(at("main"));

refresh();
