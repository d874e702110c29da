"use strict";
// Who uses the farm: clients with their share, and their chains.

function bar(value, label) {
  const made = element("progress");
  made.max = 1;
  if (present(value)) made.value = value;
  made.setAttribute("aria-label", label);
  return made;
}

function failed(row) { return row.failed ? { text: number(row.failed), className: "bad" } : "0"; }

function shareCell() {
  const box = element("span", undefined, "share");
  box.append(bar(0, "share"), element("span"));
  return box;
}

function showShare(box, row) {
  box.firstChild.value = row.share || 0;
  fill(box.lastChild, percent(row.share));
}

const clientTable = new Table("clients-table", [
  { title: "Client", value: (c) => chosenName(c.client, NO_NAME), sort: (c) => c.client },
  { title: "Share", build: shareCell, refresh: showShare, sort: (c) => c.share },
  { title: "Worker time", className: "number", value: (c) => duration(c.worker_s), sort: (c) => c.worker_s },
  { title: "Callers", className: "number", value: (c) => number(c.callers), sort: (c) => c.callers },
  { title: "Queued", className: "number", value: (c) => number(c.queued), sort: (c) => c.queued },
  { title: "Running", className: "number", value: (c) => number(c.running), sort: (c) => c.running },
  { title: "Done", className: "number", value: (c) => number(c.done), sort: (c) => c.done },
  { title: "Failed", className: "number", value: failed, sort: (c) => c.failed },
  { title: "Calls/s", className: "number", value: (c) => number(c.calls_per_s), sort: (c) => c.calls_per_s },
  { title: "Last answer", className: "number", value: (c) => duration(c.last_s), sort: (c) => c.last_s },
  {
    title: "",
    build: (row, data) => actionButton("cancel", "Cancel waiting", {
      question: () => `Cancel the ${number(data().queued)} calls of ${escaped(data().client || "clients without a name")} that wait?`,
      words: () => ({ client: data().client }),
    }),
    refresh: (button, row) => { button.hidden = !row.queued; },
  },
], { key: (c) => c.client });

const chainTable = new Table("chains-table", [
  { title: "Client", value: (chain) => chosenName(chain.client, NO_NAME), sort: (chain) => chain.client },
  { title: "Chain", value: (chain) => chosenName(chain.chain, chain.chain === "" ? "(bulk)" : ""), sort: (chain) => chain.chain },
  { title: "Queued", className: "number", value: (chain) => number(chain.queued), sort: (chain) => chain.queued },
  { title: "In flight", className: "number", value: (chain) => number(chain.in_flight), sort: (chain) => chain.in_flight },
  { title: "Done", className: "number", value: (chain) => number(chain.done), sort: (chain) => chain.done },
  { title: "Failed", className: "number", value: failed, sort: (chain) => chain.failed },
  { title: "Calls/s", className: "number", value: (chain) => number(chain.calls_per_s), sort: (chain) => chain.calls_per_s },
  { title: "Share", className: "number", value: (chain) => percent(chain.share), sort: (chain) => chain.share },
  { title: "Last answer", className: "number", value: (chain) => duration(chain.last_answer_s), sort: (chain) => chain.last_answer_s },
], { key: (chain) => JSON.stringify([chain.client, chain.chain]) });

part((state) => {
  showRows("clients", clientTable, state.clients);
  showRows("chains", chainTable, state.chains);
});
