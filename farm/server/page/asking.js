"use strict";
// Questions to the farm, and the actions of its owner.

const PATIENCE_MS = 10000, SAID_MS = 15000;

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function answered(path, method = "GET") {
  // A page whose address has the token in it cannot ask for paths: they would have it, too, and
  // browsers refuse that. They send it by themselves.
  const answer = await fetch(location.origin + path, { method, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.ok) return answer.json();
  let message = `status ${answer.status}`;
  try {
    message = (await answer.json()).error.message || message;
  } catch { /* the answer is not farm's */ }
  throw new Refused(answer.status, message);
}

function ask(question, words, method = "GET") {
  const known = Object.entries(words).filter(([, value]) => present(value));
  return answered(`/farm/${question}?${new URLSearchParams(known)}`, method);
}

function reasonOf(error, question) {
  return error.status === 404 ? `this farm has no ${question}` : escaped(error.message);
}

// Why actions are refused: of all, under "", or of one by its name.
const refusals = new Map();

function showRefusals() {
  for (const button of document.querySelectorAll("button.action")) refuse(button);
  const reasons = [...new Set(refusals.values())].join("; ");
  for (const place of document.querySelectorAll(".refusal")) place.textContent = reasons;
}

function refuse(button) {
  const reason = refusals.get("") || refusals.get(button.dataset.action);
  button.disabled = reason !== undefined;
  button.title = reason || "";
}

const NOT_OWNER = "only for the owner of the farm: the user who started it, or who has its token, which farm url prints";

// The status says whether this reader is the owner, so that others need not try.
part(({ is_owner: isOwner }) => {
  if (!present(isOwner) || isOwner !== refusals.has("")) return;
  if (isOwner) refusals.delete("");
  else refusals.set("", NOT_OWNER);
  showRefusals();
});

function confirmed(question, verb) {
  const dialog = find("sure");
  setText("sure-question", question);
  setText("sure-yes", verb);
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
}

// Show what came of an action, for a while.
function said(text) {
  setText("said", text);
  setTimeout(() => { if (find("said").textContent === text) setText("said", ""); }, SAID_MS);
}

// A button for an action of the owner. question(): asked before; words(): the action's arguments.
function actionButton(action, verb, { question, words }) {
  const button = element("button", verb, "action");
  button.type = "button";
  button.dataset.action = action;
  refuse(button);
  button.addEventListener("click", async () => {
    if (!await confirmed(question(), verb)) return;
    try {
      const done = await ask(action, words(), "POST");
      said(`${verb}: ${lines(done).join(", ") || "done"}`);
    } catch (error) {
      const reason = reasonOf(error, action);
      if (error.status === 403) refusals.set("", reason);
      if (error.status === 404) refusals.set(action, reason);
      said(`${verb} failed: ${reason}`);
      showRefusals();
    }
  });
  return button;
}
