"use strict";
// Numbers, times and texts as people read them, and the elements that hold them.

const NONE = "\u2013", NO_NAME = "(no name)", LONGEST_NAME = 40, DAY_S = 86400;
const find = (id) => document.getElementById(id);
const present = (value) => value !== null && value !== undefined;

function number(value) {
  if (!present(value)) return NONE;
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(3)).toString();
}

function duration(seconds) {
  if (!present(seconds)) return NONE;
  if (seconds <= 0) return "0 s";
  if (seconds < 1e-3) return `${number(seconds * 1e6)} \u00b5s`;
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  if (seconds < 120) return `${number(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

function bytes(count) {
  if (!present(count)) return NONE;
  let unit = 0, value = count;
  for (; value >= 1000 && unit < 4; unit += 1) value /= 1000;
  return `${number(value)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

function percent(part) { return present(part) ? `${number(100 * part)} %` : NONE; }

function now() { return Date.now() / 1000; }

function clock(time) {
  if (!present(time)) return NONE;
  const date = new Date(1000 * time);
  return Math.abs(now() - time) < DAY_S / 2 ? date.toLocaleTimeString() : date.toLocaleString();
}

function counted(count, one, many) { return `${number(count)} ${count === 1 ? one : many}`; }

// A text from a client or a model, with its control characters as escapes.
function escaped(text) {
  return String(text).replace(/\r\n/g, "\n").replace(/[^\P{C}\n\t]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// A name that a client chose: on one line, and cut where it is long.
function chosenName(name, none = "") {
  const text = escaped(name || none).replace(/[\n\t]/g, " ");
  return text.length <= LONGEST_NAME ? text : { text: `${text.slice(0, LONGEST_NAME - 1)}\u2026`, title: text };
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (present(text)) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function sum(rows, key) { return rows.reduce((total, row) => total + (row[key] || 0), 0); }

// JSON data of any form as lines of text.
function lines(data, indent = "") {
  if (!present(data)) return [];
  if (Array.isArray(data)) return data.flatMap((each) => lines(each, indent));
  if (typeof data !== "object") return escaped(data).split("\n").map((line) => indent + line);
  const flat = Object.entries(data).filter(([, value]) => present(value) && typeof value !== "object");
  const deep = Object.entries(data).filter(([, value]) => present(value) && typeof value === "object");
  const first = flat.length ? [indent + flat.map(([key, value]) => `${key} ${escaped(value)}`).join(", ")] : [];
  return [...first, ...deep.flatMap(([key, value]) => [`${indent}${key}:`, ...lines(value, `${indent}  `)])];
}

// The sections of the page: functions that show the farm's status, each by itself.
const PARTS = [];

function part(show) { PARTS.push(show); }

function setText(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}
