"use strict";
// What failed and why: calls by error text, lost workers by cause, and the last events.

function timesOf(group) { return `${number(group.count)} times from ${clock(group.first)} to ${clock(group.last)}`; }

function textBlock(text, label) {
  const block = element("pre", escaped(text));
  block.tabIndex = 0;
  block.setAttribute("aria-label", label);
  return block;
}

function facts(pairs) {
  const list = element("dl", undefined, "facts");
  for (const [title, text] of pairs) if (text) list.append(element("dt", title), element("dd", escaped(text)));
  return list;
}

function failureDetail(group) {
  const box = element("div"), trace = element("div", "asks for the traceback");
  const told = element("p", timesOf(group));
  box.append(told, facts([["Inputs", group.inputs], ["Client", group.client], ["Worker", group.worker]]), trace);
  ask("failures", { id: group.id }).then(
    (whole) => trace.replaceChildren(textBlock((whole.group || whole).detail || "no traceback is known", "traceback")),
    (error) => { trace.textContent = `no traceback: ${reasonOf(error, "tracebacks")}`; },
  );
  return { element: box, update: (later) => { told.textContent = timesOf(later); } };
}

const TIMES = [
  { title: "Count", className: "number", value: (g) => ({ text: number(g.count), className: "bad" }), sort: (g) => g.count },
  { title: "Last", value: (g) => clock(g.last), sort: (g) => g.last },
  { title: "First", value: (g) => clock(g.first), sort: (g) => g.first },
];

const failureTable = new Table("failures-table", [
  { title: "Error", className: "wide", value: (g) => escaped(`${g.kind}: ${g.text}`), sort: (g) => g.kind },
  ...TIMES,
  { title: "Model", value: (g) => g.model, sort: (g) => g.model },
  { title: "Operation", value: (g) => g.operation, when: (rows) => rows.some((g) => g.operation !== "evaluate") },
  { title: "Worker", value: (g) => g.worker || "" },
], { key: (g) => g.id, empty: "no call has failed", detail: failureDetail });

// How workers ended, and the last line of the last one's log, which often says why.
function lossText(group) {
  const last = (group.detail || "").trimEnd().split("\n").at(-1).trim();
  return [group.text || group.cause, last.slice(0, LONGEST_LINE)].filter(Boolean).join(": ");
}

const LONGEST_LINE = 200;

const lossTable = new Table("losses-table", [
  { title: "Loss", className: "wide", value: (g) => escaped(lossText(g)), sort: (g) => g.text },
  ...TIMES,
  { title: "Cause", value: (g) => g.cause, sort: (g) => g.cause },
  { title: "Last worker", value: (g) => g.worker || "" },
  { title: "Host", value: (g) => g.host || "" },
], {
  key: (g) => `${g.cause}\n${g.text}`,
  empty: "no worker was lost",
  detail: (group) => {
    const box = element("div"), told = element("p", timesOf(group));
    box.append(told, textBlock(group.detail || "nothing more is known", "what the worker left"));
    return { element: box, update: (later) => { told.textContent = timesOf(later); } };
  },
});

part((state) => {
  showRows("failures", failureTable, state.failures, { always: true });
  showRows("losses", lossTable, state.losses, { always: true });
});

const SAME_S = 60, EVENTS = 20;

// Events of one kind within a minute are one row, so that joins of many workers do not hide the
// rest. Texts of workers from elsewhere differ for each. The latest first.
function grouped(events) {
  const rows = [], open = new Map();
  for (const e of events) {
    const kind = e.event === "from elsewhere" ? e.event : `${e.event}\n${e.text}`;
    const last = open.get(kind);
    if (last && e.time - last.time < SAME_S) {
      Object.assign(last, { count: last.count + 1, worker: e.worker, time: e.time, text: e.text });
    } else {
      const row = { ...e, first: e.time, count: 1 };
      open.set(kind, row);
      rows.push(row);
    }
  }
  return rows.sort((a, b) => b.time - a.time).slice(0, EVENTS);
}

const eventTable = new Table("events-table", [
  { title: "Time", value: (e) => clock(e.time) },
  { title: "Event", value: (e) => ({ text: e.event, className: `state ${e.event}` }) },
  { title: "Worker", value: (e) => (e.count > 1 ? `${e.worker} and ${number(e.count - 1)} before` : e.worker) },
  { title: "", className: "wide", value: (e) => escaped(e.text) },
], { key: (e) => `${e.first} ${e.event} ${e.event === "from elsewhere" || e.text}`, empty: "no events yet" });

part((state) => eventTable.update(grouped(state.events)));
