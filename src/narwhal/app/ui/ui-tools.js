// What the page is made with: elements, words for values, tables.

export const $ = (id) => document.getElementById(id);

/** An element with a class and text or children. */
export function make(name, className = "", ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function drawing(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Sets text only where it changed: screen readers say what changed. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
export const list = (value) => (Array.isArray(value) ? value : []);
export const entries = (value) => Object.entries(value && typeof value === "object" ? value : {});
export const text = (value) => (value === null || value === undefined ? "-" : String(value));

export function count(value) {
  return number(value) === null ? "-" : value.toLocaleString("en", { maximumFractionDigits: 0 });
}

export function rate(value) {
  if (value === null) return "-";
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });
}

export function seconds(value) {
  if (number(value) === null) return "-";
  if (value < 0.9995) return `${Number((1000 * value).toPrecision(3))} ms`;
  return `${Number(value.toPrecision(3))} s`;
}

export function span(value) {
  if (number(value) === null) return "-";
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const clock = (date) => date.toLocaleTimeString("en-GB");

export function median(values) {
  const known = values.filter((value) => number(value) !== null).sort((a, b) => a - b);
  return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
}

// Tables

/** One row: cells are text or elements; the first one names the row. */
function row(cells) {
  const line = make("tr");
  cells.forEach((cell, place) => {
    const { of, className = "" } = cell && typeof cell === "object" && "of" in cell ? cell : { of: cell };
    const element = make(place ? "td" : "th", className, of);
    if (!place) element.scope = "row";
    line.append(element);
  });
  return line;
}

export function fill(id, rows, nothing) {
  const table = $(id);
  const body = table.tBodies[0];
  if (rows.length) {
    body.replaceChildren(...rows.map(row));
    return;
  }
  const cell = make("td", "none", nothing);
  cell.colSpan = table.tHead.rows[0].cells.length;
  body.replaceChildren(make("tr", "", cell));
}

function spark(values) {
  const known = values.map((value) => number(value) ?? 0);
  const most = Math.max(...known, 1e-9);
  const svg = drawing("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (known.length > 1) {
    const points = known.map((value, place) => `${(100 * place) / (known.length - 1)},${25 - (23 * value) / most}`);
    svg.append(drawing("polyline", { points: points.join(" "), class: "spark" }));
  }
  return svg;
}

export function tile(name, value, note = "", { over = false, values = null } = {}) {
  const box = make("div", over ? "over" : "", make("dt", "", name), make("dd", "value", value));
  if (note) box.append(make("dd", "quiet", note));
  if (values) box.append(make("dd", "", spark(values)));
  return box;
}
