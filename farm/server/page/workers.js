"use strict";
// Workers: the sick and slow first, then all by host, each with its log and its actions.

const SOON_S = 600, GROUPED_FROM = 40, WORST = 20, LOG_LINES = 200, LOG_CHARACTERS = 200000;
let everyWorker = [];

// Age of the call that runs now; null where the worker is idle.
function runningFor(worker) { return worker.running_s === undefined ? worker.busy_s : worker.running_s; }

// What the farm finds wrong with a worker, in words; "" for a healthy one.
function troubleOf(worker) { return (worker.trouble || []).join("; "); }

function middle(values) {
  const sorted = values.sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function workerState(worker) {
  const age = runningFor(worker), ends = worker.ends_in_s;
  const text = present(age) ? `busy ${duration(age)}` : "idle";
  if (present(ends) && ends < SOON_S) return { text: `${text}, ends in ${duration(ends)}`, className: "state ending" };
  return { text, className: present(age) ? "state busy" : "state" };
}

function troubleCell(worker) {
  const text = troubleOf(worker);
  return text ? { text, className: "bad" } : "";
}

function quantile(name) {
  return {
    title: name,
    className: "number",
    value: (w) => duration(w.run_times_s?.[name]),
    sort: (w) => w.run_times_s?.[name],
    total: (rows) => {
      const value = middle(rows.map((w) => w.run_times_s?.[name]).filter(present));
      return present(value) ? duration(value) : "";
    },
    when: (rows) => rows.some((w) => w.run_times_s),
  };
}

function has(key) { return (rows) => rows.some((w) => present(w[key])); }

function busyOf(rows) { return rows.filter((w) => present(runningFor(w))); }

// Calls that run, of those that could; "+1" for one that was sent ahead.
function runningOf(rows) {
  const slots = sum(rows, "slots");
  const running = rows.reduce((count, w) => count + Math.min(w.in_flight, w.slots), 0);
  const ahead = sum(rows, "in_flight") - running;
  return `${number(running)} / ${number(slots)}${ahead ? ` +${number(ahead)}` : ""}`;
}

const workerTable = new Table("workers-table", [
  { title: "Worker", value: (w) => w.name, sort: (w) => w.name },
  {
    title: "State",
    value: workerState,
    sort: (w) => runningFor(w),
    total: (rows) => `${number(busyOf(rows).length)} busy`,
  },
  { title: "Trouble", className: "wide", value: troubleCell, sort: (w) => w.trouble?.length || null, total: illOf, when: (rows) => rows.some(troubleOf) },
  { title: "Running", className: "number", value: (w) => runningOf([w]), sort: (w) => w.in_flight, total: runningOf },
  { title: "Done", className: "number", value: (w) => number(w.done), sort: (w) => w.done, total: (rows) => number(sum(rows, "done")) },
  { title: "Failed", className: "number", value: failed, sort: (w) => w.failed, total: (rows) => failed({ failed: sum(rows, "failed") }), when: has("failed") },
  quantile("p50"), quantile("p90"), quantile("p99"),
  { title: "Memory", className: "number", value: (w) => bytes(w.memory_bytes), sort: (w) => w.memory_bytes, total: (rows) => bytes(sum(rows, "memory_bytes")), when: has("memory_bytes") },
  { title: "Processor", className: "number", value: (w) => percent(w.processor), sort: (w) => w.processor, total: (rows) => percent(sum(rows, "processor")), when: has("processor") },
  { title: "Age", className: "number", value: (w) => duration(w.age_s), sort: (w) => w.age_s, when: has("age_s") },
  { title: "Restarts", className: "number", value: (w) => (w.restarts ? { text: number(w.restarts), className: "bad" } : number(w.restarts)), sort: (w) => w.restarts, total: (rows) => number(sum(rows, "restarts")), when: (rows) => rows.some((w) => w.restarts) },
  { title: "Host", value: (w) => w.host || "", sort: (w) => w.host, when: (rows) => hostsOf(rows).size > 1 && hostsOf(rows).size < rows.length },
  { title: "Device", value: (w) => w.device || "cpu", sort: (w) => w.device || "cpu", when: (rows) => rows.some((w) => w.device) },
  { title: "Models", className: "wide", value: (w) => w.models.join(", "), when: (rows) => new Set(rows.map((w) => w.models.join())).size > 1 },
], { key: (w) => w.name, empty: "no workers", detail: workerDetail, groups: groupsOf });

function illOf(rows) {
  const ill = rows.filter(troubleOf).length;
  return ill ? { text: `${number(ill)} to look at`, className: "bad" } : "";
}

const hosts = new WeakMap();

function hostsOf(rows) {
  let found = hosts.get(rows);
  if (!found) {
    found = new Map();
    for (const w of rows) {
      const name = w.host || "unknown host";
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(w);
    }
    hosts.set(rows, found);
  }
  return found;
}

// Many workers are grouped by host and closed, below those to look at. A word to find opens all.
function groupsOf(rows) {
  const byHost = hostsOf(rows);
  if (rows.length < GROUPED_FROM || byHost.size < 2 || byHost.size === rows.length) return null;
  const worst = rows.filter(troubleOf).slice(0, WORST);
  const first = worst.length ? [{ name: "Sick or slow", rows: worst, open: true, first: true }] : [];
  const open = find("workers-find").value !== "";
  const names = [...byHost.keys()].sort(COLLATOR.compare);
  return [...first, ...names.map((name) => ({ name, rows: byHost.get(name), open }))];
}

function showWorkers() {
  const words = find("workers-find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (w) => [w.name, w.host, w.models.join(" "), w.device, workerState(w).text, troubleOf(w)].join(" ").toLowerCase();
  const rows = words.length ? everyWorker.filter((w) => words.every((word) => text(w).includes(word))) : everyWorker.slice();
  rows.sort((a, b) => (b.trouble?.length || 0) - (a.trouble?.length || 0) || COLLATOR.compare(a.name, b.name));
  setText("workers-count", words.length ? `${number(rows.length)} of ${number(everyWorker.length)}` : "");
  workerTable.update(rows);
}

find("workers-find").addEventListener("input", showWorkers);

part((state) => {
  everyWorker = state.workers;
  showWorkers();
});

// What a row opens: facts, the call that runs, actions, and what the worker prints.

function workerFacts(w) {
  const call = w.running;
  return facts([
    ["Trouble", troubleOf(w)],
    ["Host", w.host],
    ["Models", w.models.join(", ")],
    ["Running", call && [
      `${call.model} ${call.operation}`, present(runningFor(w)) && `for ${duration(runningFor(w))}`, call.client && `of ${call.client}`,
      call.chain && `chain ${call.chain}`, present(call.call) && `call ${call.call}`,
    ].filter(Boolean).join(", ")],
  ]);
}

function workerDetail(worker) {
  const box = element("div"), told = element("div"), actions = element("p", undefined, "actions");
  const refusal = element("span", undefined, "refusal soft");
  const words = () => ({ worker: worker.name });
  actions.append(
    actionButton("drain", "Drain", { question: () => `Let ${worker.name} finish its calls, and then end?`, words }),
    actionButton("restart", "Restart", { question: () => `End ${worker.name} now and start it again? Its running calls are tried on other workers.`, words }),
    refusal,
  );
  refusal.textContent = [...new Set(refusals.values())].join("; ");
  const tail = new LogTail(worker.name);
  box.append(told, actions, tail.element);
  const update = (w) => { told.replaceChildren(workerFacts(w)); tail.follow(); };
  return { element: box, update };
}

// The end of what a worker prints, followed while it is shown.
class LogTail {
  constructor(worker) {
    this.worker = worker;
    this.element = textBlock("", `what ${worker} prints`);
    this.element.className = "log";
    this.element.setAttribute("role", "log");
    this.next = undefined;
    this.asking = this.ended = false;
  }

  async follow() {
    if (this.asking || this.ended) return;
    this.asking = true;
    try {
      const { text, next } = await ask("log", this.next === undefined ? { worker: this.worker, lines: LOG_LINES } : { worker: this.worker, after: this.next });
      this.add(text, this.next === undefined);
      this.next = next;
    } catch (error) {
      this.ended = error instanceof Refused;
      if (this.next === undefined) this.element.textContent = `no log: ${reasonOf(error, "logs of workers")}`;
    }
    this.asking = false;
  }

  add(text, isFirst) {
    const box = this.element;
    if (!text && !isFirst) return;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    box.textContent = isFirst ? escaped(text) || "(nothing yet)" : (box.textContent + escaped(text)).slice(-LOG_CHARACTERS);
    if (atEnd || isFirst) box.scrollTop = box.scrollHeight;
  }
}
