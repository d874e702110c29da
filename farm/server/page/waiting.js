"use strict";
// Why calls wait: the longest waits, the oldest calls, and an answer for one call or client.

const whyButton = {
  title: "",
  build: (row, data) => {
    const button = element("button", "Why?");
    button.type = "button";
    button.setAttribute("aria-label", `Why do calls of ${row.client || "clients without a name"} wait?`);
    button.addEventListener("click", () => { find("why-of").value = data().client || NO_NAME; why({ client: data().client }); });
    return button;
  },
};

const waits = new Table("waits-table", [
  { title: "Client", value: (wait) => chosenName(wait.client, NO_NAME) },
  { title: "Model", value: (wait) => wait.model },
  { title: "Operation", value: (wait) => wait.operation },
  { title: "Calls", className: "number", value: (wait) => number(wait.calls) },
  { title: "For", className: "number", value: (wait) => duration(wait.age_s) },
  { title: "Why", className: "wide", value: (wait) => wait.why.map((reason) => reason.text).join("; ") },
  whyButton,
], { key: (wait) => `${wait.client}\n${wait.model}\n${wait.operation}`, empty: "no call has waited for a second" });

const oldest = new Table("calls-table", [
  { title: "Call", value: (call) => call.call ?? "" },
  { title: "Client", value: (call) => chosenName(call.client, "(no name)") },
  { title: "Model", value: (call) => call.model },
  { title: "Operation", value: (call) => call.operation },
  { title: "State", value: (call) => ({ text: call.phase, className: call.phase === "sent" ? "state busy" : "state" }) },
  { title: "Age", className: "number", value: (call) => duration(call.age_s) },
  { title: "What happened", className: "wide", value: (call) => call.story.join(", ") },
], { key: (call) => `${call.model}\n${call.operation}\n${call.story[0]}\n${call.rank}` });

part((state) => {
  waits.update(state.waits || []);
  find("why-form").hidden = refusals.has("why");
  const calls = (state.calls || []).map((call, rank) => ({ ...call, rank }));
  showRows("calls", oldest, calls);
});

const DOES = { busy: "busy", idle: "idle", shut: "draining or unreachable", full: "behind with reading" };

function workersText({ count, ...does }) {
  const parts = Object.entries(DOES).filter(([key]) => does[key]).map(([key, word]) => `${number(does[key])} ${word}`);
  return [counted(count, "has its model", "have its model"), ...parts].join(", ");
}

// The answer in lines, and then what it says about others.
function whyText(answer) {
  const parts = [
    ["Why", lines(answer.why)],
    ["Place", answer.position ? [number(answer.position)] : []],
    ["Before it", (answer.before || []).map((row) => `${number(row.count)} of ${row.client || "clients without a name"}: ${row.reason}`)],
    ["Workers", answer.workers ? [workersText(answer.workers)] : []],
    ["Jobs", (answer.jobs || []).map((job) => `${job.id} ${job.state || "submitted"} ${job.reason || ""}`)],
  ];
  const list = element("dl", undefined, "facts");
  for (const [title, texts] of parts) {
    if (!texts.length) continue;
    const value = element("dd");
    for (const text of texts) value.append(element("div", escaped(text)));
    list.append(element("dt", title), value);
  }
  return list;
}

async function why(words) {
  const place = find("why-answer");
  try {
    place.replaceChildren(whyText(await ask("why", words)));
  } catch (error) {
    place.replaceChildren(element("p", reasonOf(error, "answer to why calls wait"), "bad"));
  }
}

find("why-form").addEventListener("submit", (event) => {
  event.preventDefault();
  why({ of: find("why-of").value.trim() });
});
