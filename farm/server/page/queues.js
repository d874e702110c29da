"use strict";
// What the farm works on, and with what: queues, jobs of the batch system, Dask's workers.

const queueTable = new Table("queues-table", [
  { title: "Model", value: (q) => q.model, sort: (q) => q.model },
  { title: "Operation", value: (q) => q.operation, sort: (q) => q.operation },
  { title: "Queued", className: "number", value: (q) => number(q.queued), sort: (q) => q.queued },
  { title: "In flight", className: "number", value: (q) => number(q.in_flight), sort: (q) => q.in_flight },
  { title: "Done", className: "number", value: (q) => number(q.done), sort: (q) => q.done },
  { title: "Failed", className: "number", value: failed, sort: (q) => q.failed },
  { title: "Copies", className: "number", value: (q) => number(q.copies), sort: (q) => q.copies },
  { title: "Run time p50", className: "number", value: (q) => duration(q.run_time_p50_s || null), sort: (q) => q.run_time_p50_s },
  { title: "p95", className: "number", value: (q) => duration(q.run_time_p95_s || null), sort: (q) => q.run_time_p95_s },
], { key: (q) => `${q.model}\n${q.operation}`, empty: "no calls yet" });

const daskTable = new Table("dask-table", [
  { title: "Dask worker", value: (d) => d.name || d.address, sort: (d) => d.name || d.address },
  { title: "Host", value: (d) => d.host, sort: (d) => d.host },
  { title: "State", value: (d) => ({ text: d.state, className: d.in_flight ? "state busy" : "state" }), sort: (d) => d.state },
  { title: "Threads", className: "number", value: (d) => number(d.threads), sort: (d) => d.threads },
  { title: "Slots", className: "number", value: (d) => number(d.slots), sort: (d) => d.slots },
  { title: "In flight", className: "number", value: (d) => number(d.in_flight), sort: (d) => d.in_flight },
  { title: "Done", className: "number", value: (d) => number(d.done), sort: (d) => d.done },
], { key: (d) => d.address });

const kindTable = new Table("kinds-table", [
  { title: "Kind", value: (k) => k.name },
  { title: "Models", className: "wide", value: (k) => k.models.join(", ") },
  { title: "Wanted", className: "number", value: (k) => number(k.wanted) },
  { title: "Pending", className: "number", value: (k) => number(k.pending) },
  { title: "Running", className: "number", value: (k) => number(k.running) },
  { title: "Most", className: "number", value: (k) => number(k.max_jobs) },
  { title: "Workers", className: "number", value: (k) => number(k.workers) },
], { key: (k) => k.name });

function jobState(job) {
  const className = { serving: "state busy", leaving: "state ending" }[job.phase] || "state";
  return { text: job.phase, className };
}

const jobTable = new Table("jobs-table", [
  { title: "Job", value: (j) => j.id, sort: (j) => String(j.id) },
  { title: "Kind", value: (j) => j.kind, sort: (j) => j.kind },
  { title: "State", value: jobState, sort: (j) => j.phase },
  { title: "In the queue", value: (j) => escaped(`${j.state || "submitted"} ${j.phase === "pending" ? j.reason : ""}`) },
  { title: "Expected start", value: (j) => (j.phase === "pending" && j.starts_at ? clock(j.starts_at) : "") },
  { title: "Nodes", value: (j) => j.nodes },
  { title: "Workers", className: "number", value: (j) => number(j.workers), sort: (j) => j.workers },
  { title: "Ends in", className: "number", value: (j) => duration(j.ends_in_s), sort: (j) => j.ends_in_s },
], { key: (j) => String(j.id), empty: "no jobs" });

function tensorText(tensor) {
  const size = tensor.shape.map((n) => (n < 0 ? "any" : n)).join(" \u00d7 ");
  const shape = size && ` [${size}]`; // a scalar has none
  const unit = tensor.unit ? ` ${tensor.unit}` : "";
  return escaped(`${tensor.name}${shape}${unit}${tensor.description ? ` (${tensor.description})` : ""}`);
}

function tensorTexts(tensors) { return tensors.map(tensorText).join(", ") || NONE; }

const modelTable = new Table("models-table", [
  { title: "Model", value: (m) => m.name, sort: (m) => m.name },
  { title: "Inputs", className: "wide", value: (m) => tensorTexts(m.inputs) },
  { title: "Outputs", className: "wide", value: (m) => tensorTexts(m.outputs) + (m.left_out ? `, and ${number(m.left_out)} more` : "") },
], { key: (m) => m.name });

part((state) => {
  queueTable.update(state.queues);
  showRows("models", modelTable, state.descriptions);
  showRows("dask", daskTable, state.dask);
});

part(({ cluster }) => {
  find("jobs").hidden = !cluster;
  if (!cluster) return;
  const wait = (k) => (k.next_try_in_s === null ? "" : `; next try in ${duration(k.next_try_in_s)}`);
  const problems = cluster.kinds.filter((k) => k.problem).map((k) => `${k.name}: ${k.problem}${wait(k)}`);
  if (cluster.problem) problems.unshift(`${cluster.system} does not answer: ${cluster.problem}`);
  find("kinds-table").caption.textContent = `${cluster.system} jobs`;
  setText("problems", problems.map(escaped).join(" \u00b7 "));
  kindTable.update(cluster.kinds);
  jobTable.update(cluster.jobs);
});
