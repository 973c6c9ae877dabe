// One search by id at two versions: the hits of each, and which of them are the same.

import { at, html, number, plural, table } from "./elements.js";

const PATIENCE = 30000; // time-out of a request in milliseconds
const KEY = "evergram-token"; // shared with the dashboard
const OFFERED = 50; // suggested ids

let versions = [];
let given = false; // whether the user has just entered the current token
let asked = 0; // searches so far; answers to earlier searches are dropped

class Refused extends Error {}

// Ids become strings, because JavaScript's numbers cannot represent all 64-bit integers.
const parse = (text) => JSON.parse(text.replace(/"id":\s*(-?\d+)/g, '"id":"$1"'));

async function ask(path, body) {
  const token = sessionStorage.getItem(KEY);
  const headers = {
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
    ...(body ? { "Content-Type": "application/json" } : {}),
  };
  let answer;
  try {
    answer = await fetch(`../v1/${path}`, {
      headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE),
      ...(body ? { method: "POST", body: JSON.stringify(body) } : {}),
    });
  } catch (error) {
    throw new Refused(error.name === "TimeoutError"
      ? "The service did not answer in time; try again." : "The service cannot be reached; try again.");
  }
  if (answer.status === 401) askForToken();
  const text = await answer.text();
  if (answer.ok) return parse(text);
  let sentence = `The service answered with error ${answer.status}.`;
  try {
    sentence = JSON.parse(text).error.message;
  } catch {
    // A proxy in front of the service may send other answers.
  }
  throw new Refused(sentence);
}

function askForToken() {
  sessionStorage.removeItem(KEY);
  at("refused").textContent = given ? "The service does not know this token." : "";
  given = false;
  at("forget").hidden = at("board").hidden = true;
  at("enter").hidden = false;
  at("found").hidden = true;
  at("said").textContent = at("summary").textContent = "";
  at("ids").replaceChildren();
  at("token").value = "";
  at("token").focus();
}

function offer(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, label]) => html("option", { value }, label)));
  select.value = chosen;
}

async function start() {
  let answer;
  try {
    answer = await ask("versions");
  } catch (error) {
    if (at("enter").hidden) at("status").textContent = error.message;
    return;
  }
  given = false;
  versions = answer.data;
  at("status").textContent = "";
  at("enter").hidden = true;
  at("forget").hidden = !sessionStorage.getItem(KEY);
  if (!versions.length) {
    at("status").textContent = "There is no version that you may read.";
    return;
  }
  at("board").hidden = false;
  at("summary").textContent = `${answer.name}: ${plural(versions.length, "version")} that you may read`;
  const named = versions.map((v) => [v.version, [`v${v.version}`, ...v.labels].join(", ")]);
  offer(at("a"), named, versions[0].version);
  offer(at("b"), named, versions.at(-1).version);
  const sides = answer.sides.map((side) => [side, side]);
  offer(at("side"), sides, answer.sides[0]);
  offer(at("id-side"), sides, answer.sides[0]);
  at("side-label").hidden = at("id-side-label").hidden = sides.length < 2;
  offerIds();
}

// Suggested ids: those nearest to the first axis, as the service cannot list ids.
async function offerIds() {
  const version = versions.at(-1);
  const vector = Array.from({ length: version.dim }, (_, i) => (i ? 0 : 1));
  const side = at("id-side").value;
  at("ids").replaceChildren();
  try {
    const answer = await ask("search", { vector, k: OFFERED, version: version.version, side });
    at("ids").replaceChildren(...answer.data[0].hits.map(({ id }) => html("option", { value: id })));
  } catch {
    // The user can still type an id.
  }
}

async function hits(version, id, k) {
  const side = at("side").value;
  const own = at("id-side").value;
  // Leave out the object itself, which is nearest to itself at any version.
  const answer = await ask("search",
    { id, id_side: own, side, version, k: own === side ? k + 1 : k });
  return answer.data[0].hits.filter((hit) => own !== side || hit.id !== id).slice(0, k);
}

function draw(node, version, own, other, otherVersion) {
  const rank = new Map(other.map(({ id }, i) => [id, i + 1]));
  const button = (id) => {
    const again = html("button", { type: "button", class: "id", title: `Search for ${id}` }, id);
    again.addEventListener("click", () => {
      at("id").value = id;
      at("id-side").value = at("side").value;
      search();
      at("said").scrollIntoView({ block: "nearest" });
    });
    return again;
  };
  table(node, `${plural(own.length, "hit")}, read as version ${version}`,
    ["rank", "id", "score", `also at v${otherVersion}`, "computed from"],
    own.map(({ id, score, computed_from: source }, i) => [
      `${i + 1}`, button(id), number(score), rank.has(id) ? `✓ rank ${rank.get(id)}` : "–", `v${source}`,
    ]), { numeric: [0, 2], empty: "No hit." });
  node.querySelectorAll("tbody tr").forEach((row, i) => {
    if (own[i]) row.classList.toggle("shared", rank.has(own[i].id));
  });
}

async function search() {
  const turn = (asked += 1);
  const [a, b, k] = ["a", "b", "k"].map((name) => Number(at(name).value));
  const id = at("id").value.trim();
  if (!id) return;
  at("said").textContent = "Searching…";
  const [first, second] = await Promise.allSettled([hits(a, id, k), hits(b, id, k)]);
  if (turn !== asked || at("board").hidden) return;
  const refused = [first, second].find((one) => one.status === "rejected");
  at("found").hidden = Boolean(refused);
  if (refused) {
    if (!(refused.reason instanceof Refused)) throw refused.reason;
    at("said").textContent = refused.reason.message;
    return;
  }
  at("a-title").textContent = `Version A: v${a}`;
  at("b-title").textContent = `Version B: v${b}`;
  draw(at("hits-a"), a, first.value, second.value, b);
  draw(at("hits-b"), b, second.value, first.value, a);
  const ids = new Set(second.value.map((hit) => hit.id));
  const shared = first.value.filter((hit) => ids.has(hit.id)).length;
  const most = Math.max(first.value.length, second.value.length);
  at("said").textContent = most
    ? `overlap@${k} of ${id}: ${number(shared / most)}. Of ${plural(most, "hit")}, ${shared} are the same at v${a} and v${b}.`
    : `Nothing is near ${id}: the side has no other rows.`;
}

at("query").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
at("id-side").addEventListener("change", offerIds);
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  at("refused").textContent = "";
  given = true;
  start().then(() => !at("board").hidden && at("id").focus());
});
at("forget").addEventListener("click", askForToken);

start();
