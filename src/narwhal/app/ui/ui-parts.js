// Shows one state after another. Whatever a state says is put there as text, never as markup.

import {
  $, make, drawing, say, number, list, entries, text, count, rate, seconds, span, clock, median, fill, tile,
} from "./ui-tools.js";

const HISTORY = 150; // five minutes
const RATE_S = 10;
const MOST_MOVES = 50;

const seen = []; // of this start of the router, the oldest first

// Rates, from the router's own clock and counters

function remember(state) {
  const last = seen.at(-1);
  if (last && (state.uptime_s < last.uptime_s || received(state) < received(last))) seen.length = 0;
  const { uptime_s, requests, tokens, roles } = state; // engines would fill the memory
  const kept = { uptime_s, requests, tokens, loads: roles?.decision?.loads };
  if (!seen.length || uptime_s > seen.at(-1).uptime_s) seen.push(kept);
  while (seen.length > HISTORY) seen.shift();
}

const received = (state) => number(state.requests?.received) ?? 0;

/** What `of` grew by a second, from one remembered state to another. */
function slope(of, first, last) {
  const length = last.uptime_s - first.uptime_s;
  return length > 0 ? Math.max(0, (of(last) - of(first)) / length) : null;
}

function perSecond(of) {
  const last = seen.at(-1);
  if (!last) return null;
  const first = seen.find((state) => last.uptime_s - state.uptime_s <= RATE_S) ?? last;
  const from = first === last ? seen.at(-2) : first;
  return from ? slope(of, from, last) : null;
}

/** The value at, or between, remembered states. */
const trail = (of) => seen.map(of);
const trailOfRate = (of) => seen.slice(1).map((state, place) => slope(of, seen[place], state));

// Parts of the page

function tiles(state) {
  const { requests = {}, tokens = {}, attempts = {}, slo = {} } = state;
  const generated = (each) => number(each.tokens?.completion) ?? 0;
  const recent = list(state.recent);
  const first = slo.ttft_scope === "first_token" ? "first_token_ttft_s" : "prefill_ttft_s";
  const ttft = recent.map((each) => each[first]);
  const tpot = recent.map((each) => each.tpot_s);
  const late = (value, target) => value !== null && number(target) !== null && value > target;
  $("tiles").replaceChildren(
    tile("Requests a second", rate(perSecond(received)), `${count(requests.received)} so far`, {
      values: trailOfRate(received),
    }),
    tile("In flight", count(requests.in_flight), `${count(requests.retained)} held in memory`, {
      values: trail((each) => each.requests?.in_flight),
    }),
    tile("Waiting", count(requests.waiting), "for a seat", {
      values: trail((each) => each.requests?.waiting),
    }),
    tile("Tokens a second", rate(perSecond(generated)), `${count(tokens.completion)} so far`, {
      values: trailOfRate(generated),
    }),
    tile("TTFT, median", seconds(median(ttft)), `of the last ${recent.length}; target ${seconds(slo.ttft_s)}`, {
      over: late(median(ttft), slo.ttft_s),
    }),
    tile("TPOT, median", seconds(median(tpot)), `of the last ${recent.length}; target ${seconds(slo.tpot_s)}`, {
      over: late(median(tpot), slo.tpot_s),
    }),
    tile("Retries", count(attempts.retries), `${rate(number(attempts.retry_credits))} credits left`),
  );
}

function legs(engine, phase) {
  const here = number(engine.residents?.[phase]) ?? 0;
  const limit = number(engine.seat_limit?.[phase]) ?? 0;
  const box = make("span", phase, limit ? `${here} / ${limit}` : `${here}`);
  if (limit) {
    const full = make("span");
    full.style.width = `${Math.min(100, (100 * here) / limit)}%`;
    const bar = make("span", "bar", full);
    bar.setAttribute("aria-hidden", "true");
    box.append(bar);
  }
  return { of: box, className: "bars" };
}

function standing(engine) {
  const serving = engine.state === "serving";
  const out = ["ejected", "held", "blocked"].includes(engine.state);
  const since = number(engine.state_s) === null ? "" : ` ${span(engine.state_s)}`;
  return make("span", `pill ${serving ? "good" : out ? "bad" : "warn"}`, text(engine.state) + since);
}

function engines(state) {
  const rows = list(state.engines).map((engine) => {
    const role = make("span", engine.role === "decode" ? "decode" : "prefill", text(engine.role));
    const pace = ["prefill", "decode"].map((phase) => number(engine.pace?.[phase])?.toFixed(2) ?? "-");
    const doubt = engine.suspicion === "trusted" ? "" : engine.suspicion;
    return [
      text(engine.iid),
      make("span", "", role, engine.pin ? " (pinned)" : ""),
      standing(engine),
      legs(engine, "prefill"),
      legs(engine, "decode"),
      { of: count(engine.reserved_tokens), className: "number" },
      { of: seconds(engine.backlog_s), className: "number" },
      { of: pace.join(" / "), className: "number" },
      { of: [engine.reason, doubt].filter(Boolean).join("; "), className: "wide" },
    ];
  });
  fill("engines", rows, "There are none.");
}

function roles(state) {
  const view = state.roles;
  $("roles-box").hidden = !view;
  if (!view) return;
  const decision = view.decision;
  const load = (phase) => number(decision?.loads?.[phase]);
  const loadTile = (name, phase) =>
    tile(name, load(phase)?.toFixed(2) ?? "-", "1 is the target", {
      over: (load(phase) ?? 0) > 1,
      values: trail((each) => each.loads?.[phase]),
    });
  const serving = (phase) => list(state.pools?.[phase]).length;
  $("loads").replaceChildren(
    tile("Split", text(decision?.split), `taking work now: ${serving("prefill")} and ${serving("decode")}`),
    loadTile("Prefill load", "prefill"),
    loadTile("Decode load", "decode"),
    tile("Evidence", view.evidence?.closed ? "closed" : "open", `${span(view.evidence?.elapsed_s)}, ${count(view.evidence?.arrivals)} arrivals`),
  );
  const advisory = view.advisory ? " Advisory: nothing is moved." : "";
  say($("decision"), decision ? `${span(decision.ago_s)} ago: ${decision.reason}.${advisory}` : `No decision yet.${advisory}`);
  const flips = list(view.flips);
  split(flips, decision?.split, number(state.uptime_s) ?? 0);
  const rows = flips.slice(0, MOST_MOVES).map((flip) => [
    span(flip.ago_s),
    text(flip.iid),
    make("span", flip.to === "decode" ? "decode" : "prefill", text(flip.to)),
    text(flip.rule),
    text(flip.split),
  ]);
  fill("moves", rows, "No engine has changed its role.");
}

function parts(of) {
  const found = /^(\d{1,4})P(\d{1,4})D$/.exec(of);
  return found && { prefill: Number(found[1]), decode: Number(found[2]) };
}

/** How many engines of each role there were, since the first move that is remembered. */
function split(flips, now, uptime) {
  const steps = flips.map((flip) => ({ ago: number(flip.ago_s) ?? 0, ...parts(flip.split), to: flip.to })).reverse();
  const shown = steps.length > 0 && parts(now) !== null && steps.every((step) => "prefill" in step);
  for (const id of ["split", "split-legend"]) $(id).toggleAttribute("hidden", !shown);
  if (!shown) return;
  const gain = steps[0].to === "decode" ? 1 : -1;
  const start = { ago: Math.max(uptime, steps[0].ago * 1.05, 1), prefill: steps[0].prefill + gain, decode: steps[0].decode - gain };
  const all = [start, ...steps];
  const most = Math.max(...all.flatMap((step) => [step.prefill, step.decode]));
  const x = (ago) => 600 * (1 - ago / start.ago);
  const y = (engines) => 115 - (110 * engines) / most;
  const lines = [0, most].map((level) => drawing("line", { x1: 0, x2: 600, y1: y(level), y2: y(level) }));
  const paths = ["prefill", "decode"].map((role) => {
    const way = all.map((step, place) => (place ? `H${x(step.ago)}V${y(step[role])}` : `M0 ${y(step[role])}`));
    return drawing("path", { d: `${way.join("")}H600`, class: role });
  });
  $("split").replaceChildren(...lines, ...paths);
  say($("split-span"), `(from 0 to ${most} engines, over the last ${span(start.ago)})`);
}

function counts(state) {
  const ends = entries(state.requests?.terminals).map(([name, total]) => [
    name,
    { of: count(total), className: "number" },
    { of: rate(perSecond((each) => number(each.requests?.terminals?.[name]) ?? 0)), className: "number" },
  ]);
  fill("ends", ends, "Nothing has ended yet.");
  const positive = (of) =>
    entries(of)
      .filter(([, total]) => number(total))
      .sort((a, b) => b[1] - a[1])
      .map(([name, total]) => [name, { of: count(total), className: "number" }]);
  fill("codes", positive(state.admission?.rejections), "Nobody was turned away.");
  fill("limits", positive(state.limits_fired), "None has fired.");
}

function recent(state) {
  const timed = (value) => ({ of: seconds(value), className: "number" });
  const rows = list(state.recent).map((each) => {
    const good = each.terminal === "completed";
    const bad = ["failed", "expired"].includes(each.terminal);
    const way = [each.prefill, each.decode].filter(Boolean);
    return [
      number(each.ts) === null ? "-" : clock(new Date(1000 * each.ts)),
      make("span", `pill ${good ? "good" : bad ? "bad" : "warn"}`, text(each.terminal)),
      text(each.code),
      way.length ? [...new Set(way)].join(" → ") : "-",
      { of: count(each.attempts), className: "number" },
      timed(each.queue_s),
      timed(each.prefill_ttft_s),
      timed(each.first_token_ttft_s),
      timed(each.tpot_s),
      timed(each.request_s),
      text(each.request_id),
    ];
  });
  fill("recent", rows, "There was none yet.");
}

export function badge(word, kind) {
  say($("status"), word);
  $("status").className = `badge ${kind}`;
}

export function show(state) {
  remember(state);
  say($("model"), text(state.model));
  document.title = `${state.ready ? "" : "! "}${text(state.model)}: narwhal-trio`;
  say($("about"), `narwhal-trio ${text(state.version)}, up ${span(state.uptime_s)}`);
  if (state.draining) badge("draining", "warn");
  else badge(state.ready ? "ready" : "not ready", state.ready ? "good" : "bad");
  const alerts = list(state.alerts).map(text);
  $("alerts-box").hidden = !alerts.length;
  // How long something has lasted changes all the time: that is not worth saying again.
  const news = alerts.join("\n").replace(/ for \d+ s/g, "");
  if ($("alerts").dataset.news !== news) {
    $("alerts").dataset.news = news;
    $("alerts").replaceChildren(...alerts.map((alert) => make("li", "", alert)));
  }
  for (const part of [tiles, engines, roles, counts, recent]) part(state);
  $("all").hidden = false;
}
