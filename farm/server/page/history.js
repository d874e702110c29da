"use strict";
// What happened before you looked: charts of the history that the front door keeps.

const SVG = "http://www.w3.org/2000/svg", HEIGHT = 132, LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 22, PLACES = 3, HALF_LABEL = 28;
const RANGES = { "5 min": [300, 2], "1 hour": [3600, 10], "1 day": [DAY_S, 60] };  // seconds, and seconds between questions
const TIME_STEPS_S = [60, 300, 600, 900, 1800, 3600, 3 * 3600, 6 * 3600];

const CHARTS = [
  { title: "Calls per second", unit: "calls/s", series: { calls_per_s: "answered", failed_per_s: "failed" } },
  { title: "Workers", unit: "workers", series: { workers: "there", busy: "busy" } },
  { title: "Queued", unit: "calls", series: { queued: "waiting" } },
  { title: "Run time", unit: "median", series: { run_p50_s: "median" }, show: duration },
];

const look = { range: null, chosen: false, next: 0, answer: null };

// Round steps of 1, 2 or 5 that divide 0 to `top` into about PLACES parts.
function stepOf(top) {
  const rough = top / PLACES, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((each) => each * power >= rough);
}

function timeTicks(from, to, width) {
  const most = Math.max(2, Math.floor(width / 90));
  const step = TIME_STEPS_S.find((each) => (to - from) / each <= most) || DAY_S;
  const zone = 60 * new Date(1000 * to).getTimezoneOffset();  // ticks at full hours of the reader's clock
  const ticks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) ticks.push(at);
  return ticks;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Points of a line, with a new beginning after each gap.
function pathOf(times, values, x, y) {
  let path = "", isDown = false;
  values.forEach((value, i) => {
    if (present(value)) path += `${isDown ? "L" : "M"}${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`;
    isDown = present(value);
  });
  return path;
}

function chartOf(chart) {
  const figure = element("figure", undefined, "card chart");
  const caption = element("figcaption"), readout = element("span", "", "soft");
  const keys = Object.keys(chart.series).map((_, i) => element("span", "", `key of-${i}`));
  caption.append(element("strong", chart.title), ...keys, readout);
  const picture = svg("svg", { role: "img" });
  figure.append(caption, picture);
  const made = { ...chart, figure, keys, readout, picture, show: chart.show || number };
  picture.addEventListener("pointermove", (event) => pointAt(made, event));
  picture.addEventListener("pointerleave", () => drawChart(made));
  return made;
}

// Write the values of a step beside the colours of their lines; return them as text.
function showValues(chart, i) {
  const { series } = look.answer;
  const texts = Object.entries(chart.series).map(([key, name]) => (series[key] ? `${chart.show(series[key].at(i))} ${name}` : ""));
  texts.forEach((text, j) => fill(chart.keys[j], text));
  return texts.filter(Boolean).join(", ");
}

function drawChart(chart) {
  const { answer } = look, width = chart.picture.clientWidth || 300;
  const to = answer.now ?? answer.times.at(-1), from = to - RANGES[look.range][0];
  const keys = Object.keys(chart.series).filter((key) => answer.series[key]);
  const first = answer.times.findIndex((time) => time >= from);
  const times = first < 0 ? [] : answer.times.slice(first);
  const values = keys.map((key) => answer.series[key].slice(answer.times.length - times.length));
  const peak = values.flat().reduce((most, value) => (present(value) && value > most ? value : most), 0);
  const step = stepOf(peak || 1), top = step * Math.ceil((peak || 1) / step);
  const x = (time) => LEFT + (width - LEFT - RIGHT) * (time - from) / (to - from);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top;
  const parts = [];
  for (let tick = 0; tick <= top * 1.001; tick += step) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    parts.push(svg("text", { class: "tick", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, tick ? chart.show(tick) : "0"));
  }
  for (const tick of timeTicks(from, to, width)) {
    const text = new Date(1000 * tick).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP, y2: HEIGHT - BOTTOM }));
    const place = Math.min(x(tick), width - HALF_LABEL);
    parts.push(svg("text", { class: "tick", x: place, y: HEIGHT - 6, "text-anchor": "middle" }, text));
  }
  values.forEach((line, i) => parts.push(svg("path", { class: `line of-${i}`, d: pathOf(times, line, x, y) })));
  Object.assign(chart, { x, times, offset: answer.times.length - times.length });
  chart.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.picture.replaceChildren(...parts);
  const latest = answer.times.length ? showValues(chart, -1) : "nothing yet";
  chart.picture.setAttribute("aria-label", `${chart.title}, the last ${look.range}: now ${latest}; most ${chart.show(peak)} ${chart.unit}`);
  fill(chart.readout, `peak ${chart.show(peak)}`);
}

// The values at the pointer, in place of the latest ones.
function pointAt(chart, event) {
  if (!look.answer || !chart.times.length) return;
  const at = event.clientX - chart.picture.getBoundingClientRect().left;
  const distances = chart.times.map((time) => Math.abs(chart.x(time) - at));
  const i = distances.indexOf(Math.min(...distances));
  const x = chart.x(chart.times[i]);
  chart.picture.querySelector(".pointer")?.remove();
  chart.picture.append(svg("line", { class: "pointer", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
  showValues(chart, chart.offset + i);
  fill(chart.readout, `at ${clock(chart.times[i])}`);
}

const charts = CHARTS.map(chartOf);
find("charts").append(...charts.map((chart) => chart.figure));

for (const range of Object.keys(RANGES)) {
  const button = element("button", range);
  button.type = "button";
  button.addEventListener("click", () => {
    look.chosen = true;
    showHistory(range);
  });
  find("ranges").append(button);
}

async function showHistory(range) {
  look.range = range;
  for (const button of find("ranges").children) button.setAttribute("aria-pressed", String(button.textContent === range));
  look.next = performance.now() + 1000 * RANGES[range][1];
  let answer;
  try {
    answer = await ask("history", { since: -RANGES[range][0] });
  } catch (error) {
    if (error instanceof Refused) look.next = Infinity;
    return;
  }
  if (look.range !== range) return;  // another was chosen meanwhile
  look.answer = answer;
  find("history").hidden = false;
  if (!charts.some((chart) => chart.picture.querySelector(".pointer"))) charts.forEach(drawChart);
}

window.addEventListener("resize", () => { if (look.answer) charts.forEach(drawChart); });

part((state) => {
  const fitting = state.up_s < 600 ? "5 min" : "1 hour";
  if (!look.chosen && look.range !== fitting) showHistory(fitting);
  else if (performance.now() >= look.next) showHistory(look.range);
});
