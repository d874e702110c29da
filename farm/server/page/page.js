"use strict";
// Asks for the status every second, or less often where it takes long, and shows it.

const EVERY_MS = 1000, SHARE = 5;

function say(text, lost) {
  setText("link", text);
  find("link").classList.toggle("lost", lost);
}

async function turn() {
  const began = performance.now();
  if (!document.hidden) {
    try {
      const state = await answered("/farm/status");
      say("live", false);
      for (const show of PARTS) {
        try {
          show(state);
        } catch (error) {  // the other sections are shown all the same
          console.error(error);
          say(`a section cannot be shown: ${error.message}`, true);
        }
      }
    } catch (error) {
      say(`no answer: ${escaped(error.message)}`, true);
    }
  }
  setTimeout(turn, Math.max(EVERY_MS, SHARE * (performance.now() - began)));
}
turn();
