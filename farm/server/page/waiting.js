"use strict";
// Why calls wait: the longest waits, the oldest calls, and an answer for one call or client.

const whyButton = {
  title: "",
  build: (row, data) => {
    const button = element("button", "Why?");
    button.type = "button";
    button.setAttribute("aria-label", `Why do calls of ${row.client || "clients without a name"} wait?`);
    button.addEventListener("click", () => { find("why-of").value = data().client; why({ client: data().client }); });
    return button;
  },
};

const waits = new Table("waits-table", [
  { title: "Client", value: (wait) => chosenName(wait.client, "(no name)") },
  { title: "Model", value: (wait) => wait.model },
  { title: "Operation", value: (wait) => wait.operation },
  { title: "Calls", className: "number", value: (wait) => number(wait.calls) },
  { title: "For", className: "number", value: (wait) => duration(wait.age_s) },
  { title: "Why", className: "wide", value: (wait) => wait.why.map((reason) => reason.text).join("; ") },
  whyButton,
], { key: (wait) => `${wait.client}\n${wait.model}\n${wait.operation}`, empty: "no call has waited for a second" });

const oldest = new Table("calls-table", [
  { title: "Model", value: (call) => call.model },
  { title: "Operation", value: (call) => call.operation },
  { title: "State", value: (call) => ({ text: call.phase, className: call.phase === "sent" ? "state busy" : "state" }) },
  { title: "Age", className: "number", value: (call) => duration(call.age_s) },
  { title: "What happened", className: "wide", value: (call) => call.story.join(", ") },
], { key: (call) => `${call.model}\n${call.operation}\n${call.story[0]}\n${call.rank}` });

let clientsKnown = new Set();

part((state) => {
  clientsKnown = new Set([...state.waits || [], ...state.clients || [], ...state.chains || []].map((row) => row.client));
  waits.update(state.waits || []);
  find("why-form").hidden = refusals.has("why");
  const calls = (state.calls || []).map((call, rank) => ({ ...call, rank }));
  showRows("calls", oldest, calls);
});

const WHY_TITLES = { position: "Place", before: "Before it", workers: "Workers", jobs: "Jobs" };

function whyText(answer) {
  const parts = [element("div")];
  for (const line of lines(answer.why)) parts[0].append(element("p", line));
  for (const [key, title] of Object.entries(WHY_TITLES)) {
    const text = key === "before"
      ? (answer.before || []).map((row) => `${number(row.count)} of ${escaped(row.client || "clients without a name")}: ${escaped(row.reason)}`)
      : lines(answer[key]);
    if (!text.length) continue;
    const list = element("dl", undefined, "facts");
    const value = element("dd");
    for (const line of text) value.append(element("div", line));
    list.append(element("dt", title), value);
    parts.push(list);
  }
  return parts;
}

async function why(words) {
  const place = find("why-answer");
  try {
    place.replaceChildren(...whyText(await ask("why", words)));
  } catch (error) {
    place.replaceChildren(element("p", reasonOf(error, "answer to why calls wait"), "bad"));
  }
}

find("why-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const of = find("why-of").value.trim();
  why(clientsKnown.has(of) ? { client: of } : { call: of });
});
