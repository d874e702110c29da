"use strict";
// The top of the page: the farm's name and numbers, and what needs a look.

const LATELY_S = 3600;

function tiles(state) {
  const slots = sum(state.workers, "slots");
  const busy = state.workers.filter((w) => present(runningFor(w))).length;
  const tail = (p) => (p ? `p95 ${duration(p.p95)} \u00b7 p99 ${duration(p.p99)}` : "not measured yet");
  const entries = [
    ["Workers", number(state.workers.length), `${number(busy)} busy \u00b7 ${number(slots)} slots`],
    ["Queued", number(sum(state.queues, "queued")), `${number(sum(state.queues, "in_flight"))} in flight`],
    ["Calls per second", number(state.calls_per_s), "over the last 10 s"],
    ["Done", number(state.done), `${number(state.failed)} failed \u00b7 ${duration(state.run_time_s)} in models`],
    ["Call overhead", state.overhead_s ? duration(state.overhead_s.p50) : NONE, tail(state.overhead_s)],
    ["Worker idle gap", state.idle_gap_s ? duration(state.idle_gap_s.p50) : NONE, tail(state.idle_gap_s)],
  ];
  find("tiles").replaceChildren(...entries.map(([title, value, more]) => {
    const card = element("div", undefined, "card");
    const shown = element("dd", value);
    shown.append(element("small", more));
    card.append(element("dt", title), shown);
    return card;
  }));
}

function lately(groups, what, text = (group) => group.text) {
  const recent = (groups || []).filter((group) => now() - group.last < LATELY_S);
  if (!recent.length) return null;
  const [latest] = recent;
  return `${what(sum(recent, "count"))}, last ${duration(Math.round(now() - latest.last))} ago: ${escaped(text(latest))}`;
}

// What a person should look at, each with the section that has more. Counts of groups go back to
// their first time, which may be longer than the hour that makes them recent.
function notices(state) {
  const ill = state.workers.filter(troubleOf).sort((a, b) => b.trouble.length - a.trouble.length);
  const pending = (state.cluster?.jobs || []).filter((job) => job.phase === "pending" && job.reason);
  const [longest] = state.waits || [];
  return [
    ["failures", lately(state.failures, (count) => `${counted(count, "call", "calls")} failed`)],
    ["losses", lately(state.losses, (count) => `${counted(count, "worker was", "workers were")} lost`, lossText)],
    ["workers", ill.length && `${counted(ill.length, "worker is", "workers are")} slow or sick: ${ill[0].name}: ${troubleOf(ill[0])}`],
    ["jobs", pending.length && `${counted(pending.length, "job waits", "jobs wait")} in the queue: ${escaped(pending[0].reason)}`],
    ["waits", longest && longest.age_s > 10 && `calls wait for ${duration(longest.age_s)}: ${escaped(longest.why[0]?.text || "see why")}`],
  ].filter(([, text]) => text);
}

part((state) => {
  const found = notices(state);
  find("notices").hidden = !found.length;
  const list = find("notices").querySelector("ul");
  if (list.children.length !== found.length) {
    list.replaceChildren(...found.map(() => { const item = element("li"); item.append(element("a")); return item; }));
  }
  found.forEach(([section, text], i) => {
    const link = list.children[i].firstChild;
    link.href = `#${section}`;
    if (link.textContent !== text) link.textContent = text;
  });
});

function restarts(restarted) {
  if (!restarted) return "";
  return ` \u00b7 front door was started again (it ${restarted.reason}), ${counted(restarted.count, "restart", "restarts")}`;
}

part((state) => {
  const queued = sum(state.queues, "queued");
  document.title = queued ? `farm \u00b7 ${number(queued)} queued` : "farm";
  setText("about", `${state.models.join(", ") || "no model yet"} \u00b7 up ${duration(state.up_s)}${restarts(state.restarts)}`);
  tiles(state);
});

part((state) => {
  const name = JSON.stringify(state.models[0] || "model"), url = JSON.stringify(location.origin);
  setText("example", `import umbridge\nmodel = umbridge.HTTPModel(${url}, ${name})\n`
    + "print(model.get_input_sizes(), model.get_output_sizes())");
});
