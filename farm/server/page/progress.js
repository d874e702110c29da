"use strict";
// How long it takes: sweeps, experiments and chains with their progress and expected end.

function ends(row) {
  if (!present(row.ends_in_s)) return NONE;
  return `in ${duration(row.ends_in_s)}, at ${clock(now() + row.ends_in_s)}`;
}

const progressTable = new Table("progress-table", [
  { title: "Name", value: (p) => chosenName(p.name, NO_NAME), sort: (p) => p.name },
  { title: "Kind", value: (p) => p.kind, sort: (p) => p.kind },
  { title: "Client", value: (p) => chosenName(p.client), sort: (p) => p.client },
  {
    title: "Progress",
    build: () => bar(null, "progress"),
    refresh: (made, p) => {
      made.hidden = !p.total;
      if (p.total) made.value = Math.min(1, (p.done + (p.failed || 0)) / p.total);
    },
    sort: (p) => (p.total ? p.done / p.total : null),
  },
  { title: "Done", className: "number", value: (p) => number(p.done) + (present(p.total) ? ` of ${number(p.total)}` : ""), sort: (p) => p.done },
  { title: "Failed", className: "number", value: failed, sort: (p) => p.failed },
  { title: "Calls/s", className: "number", value: (p) => number(p.calls_per_s), sort: (p) => p.calls_per_s },
  { title: "Since", className: "number", value: (p) => duration(p.since_s), sort: (p) => p.since_s },
  { title: "Expected end", className: "wide", value: ends, sort: (p) => p.ends_in_s },
], { key: (p) => `${p.kind}\n${p.client}\n${p.name}` });

const experimentTable = new Table("experiments-table", [
  { title: "Experiment", value: (x) => `${x.number} ${x.name}` },
  { title: "Strategy", value: (x) => x.strategy_name },
  { title: "Asked", className: "number", value: (x) => number(x.asked) },
  { title: "Told", className: "number", value: (x) => number(x.told) },
  { title: "Failed", className: "number", value: (x) => number(x.failed) },
  { title: "Pending", className: "number", value: (x) => number(x.pending) },
  { title: "State", value: (x) => ({ text: x.run || (x.finished ? "finished" : "open"), className: x.run === "running" ? "state busy" : "state" }) },
  { title: "", className: "wide", value: (x) => x.run_why || x.note || "" },
], { key: (x) => String(x.number) });

part((state) => {
  showRows("progress", progressTable, state.progress);
  showRows("experiments", experimentTable, state.experiments && [...state.experiments].reverse());
});
