// The row of the selected point: parameters, outputs, status, times, worker, error and traceback.

function showRow(state) {
  const { data, selection } = state;
  const host = document.getElementById("row");
  const { one } = selection;
  host.classList.toggle("empty", one === null);
  host.replaceChildren();
  if (one === null) return showNothing(host, data);
  const heading = element("h2", `Point ${data.index[one]}`);
  const status = data.statuses[data.status[one]];
  heading.append(element("span", status, data.status[one] > DONE ? "badge bad" : "badge"));
  const steps = element("span", "", "step");
  const step = (text, by, label) => {
    const made = button(text, () => selection.step(by));
    made.setAttribute("aria-label", label);
    steps.append(made);
  };
  step("←", -1, "point before");
  step("→", 1, "point after");
  const close = button("×", () => selection.clear());
  close.setAttribute("aria-label", "select nothing");
  steps.append(close);
  heading.append(steps);
  host.append(heading);
  const failure = data.errors.get(one);
  if (failure) {
    host.append(element("pre", data.texts[failure.text] || "no text", "error"));
    const traceback = failure.traceback < 0 ? "" : data.tracebacks[failure.traceback];
    if (traceback) {
      const more = element("details");
      more.append(element("summary", "Traceback"), element("pre", traceback));
      host.append(more);
    } else if (failure.traceback < 0) {
      host.append(element("p", "Its traceback is not in this report: farm sweep failures --csv", "soft"));
    }
  }
  host.append(element("h3", "Parameters"), numbers(data.parameters, one));
  if (data.outputs.length && data.status[one] === DONE) host.append(element("h3", "Outputs"), numbers(data.outputs, one));
  host.append(element("h3", "Run"), runOf(data, one));
  return undefined;
}

function showNothing(host, data) {
  if (!data.size) {
    host.append(element("h2", "No point yet"), element("p", "No point of this sweep has finished.", "soft"));
    return;
  }
  host.append(element("h2", "No point selected"), element("p", "Click on a point in any figure to see its row.", "soft"));
  const keys = element("p", "", "soft");
  for (const part of ["Keys: ", "<←", "<→", " next point, ", "<Esc", " none. Double click: whole range."]) {
    keys.append(part.startsWith("<") ? element("kbd", part.slice(1)) : part);
  }
  host.append(keys);
}

function numbers(columns, one) {
  return rows(columns.map((column) => [column.name, column.at(one), column.unit, column.description]));
}

function rows(entries) {
  const table = element("table");
  for (const [name, text, unit, description] of entries) {
    const row = element("tr");
    const head = element("th", name);
    head.scope = "row";
    if (description) head.title = description;
    const cell = element("td", text, "n");
    if (unit) cell.append(" ", element("small", unit));
    row.append(head, cell);
    table.append(row);
  }
  return table;
}

function runOf(data, one) {
  const worker = data.worker[one] < 0 ? "none" : data.workers[data.worker[one]] || String(data.worker[one]);
  return rows([
    ["run time", seconds(data.run.raw[one])],
    ["in the queue", seconds(data.queue[one])],
    ["started after", seconds(data.start[one])],
    ["worker", worker],
    ["attempts", String(data.attempts[one])],
  ]);
}
