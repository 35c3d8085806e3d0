// Asks for the state, again and again, and has it shown.

import { badge, show } from "./ui-parts.js";
import { $, say, number, clock } from "./ui-tools.js";

const EVERY_MS = 2000;
const LONGEST_PAUSE_MS = 30000;
const PATIENCE_MS = 10000;
const TOKEN = "narwhal-token";

let failures = 0;
let failedAt = null;
let updatedAt = null;
let paused = false;
let timer = null;
let asking = false;

class Refused extends Error {}

/** What the router says of its refusal, and else its status. */
async function complaint(answer) {
  const said = await answer.json().then((body) => body.error?.message, () => null);
  return typeof said === "string" ? `${answer.status}: ${said}` : `the router answered ${answer.status}`;
}

async function ask() {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch("state", {
    headers, cache: "no-store", redirect: "error", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(await complaint(answer));
  const state = await answer.json();
  if (!state || typeof state !== "object" || number(state.uptime_s) === null) throw new Error("this is no state of a router");
  return state;
}

function trouble(why) {
  $("trouble").hidden = !why;
  say($("trouble"), why ?? "");
  $("all").classList.toggle("old", Boolean(why));
}

async function look() {
  timer = null;
  if (asking) return;
  asking = true;
  try {
    const state = await ask();
    failures = 0;
    failedAt = null;
    updatedAt = new Date();
    $("login").hidden = true;
    trouble(null);
    show(state);
  } catch (error) {
    if (error instanceof Refused) {
      wantToken();
      return;
    }
    failures += 1;
    failedAt ??= new Date();
    badge("unreachable", "bad");
    document.title = "! narwhal-trio";
    const why = error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : error.message;
    trouble(`The router cannot be reached since ${clock(failedAt)} (${why}).`);
  } finally {
    asking = false;
  }
  stamp();
  plan();
}

function wantToken() {
  badge("locked", "warn");
  $("all").hidden = true;
  trouble(sessionStorage.getItem(TOKEN) ? "The router does not accept this token." : null);
  sessionStorage.removeItem(TOKEN);
  $("login").hidden = false;
  $("token").focus();
}

function stamp() {
  say($("updated"), updatedAt ? `${paused ? "paused, " : ""}as of ${clock(updatedAt)}` : "");
}

/** The next look: later and later while nobody answers, and never while nobody watches. */
function plan() {
  if (paused || document.hidden || timer !== null) return;
  const wait = Math.min(LONGEST_PAUSE_MS, EVERY_MS * 2 ** Math.min(failures, 8));
  timer = setTimeout(look, failures ? wait * (0.75 + Math.random() / 2) : wait);
}

function again() {
  clearTimeout(timer);
  timer = null;
  if (!paused && !document.hidden && $("login").hidden) look();
  stamp();
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  again();
});
document.addEventListener("visibilitychange", again);
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  $("login").hidden = true;
  again();
});
look();
