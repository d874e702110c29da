// Puts the page together: the sections that the sweep has data for, and what links them.

const FIRST_FIGURES = 6;
const FIRST_HISTOGRAMS = 12;
const MOST_AXES = 9;

function start() {
  const data = readData();
  const state = {
    data,
    selection: new Selection(data),
    chosen: data.first,
    output: () => data.outputs[state.chosen],
    describe: (place, columns) => describe(data, place, columns),
    zoomed: () => { document.getElementById("reset").hidden = ![...allFigures].some((f) => f.view); },
  };
  state.order = orderOf(data, state);
  const jobs = [];
  if (data.size) {
    if (data.outputs.length) jobs.push(() => against(state));
    jobs.push(() => ranking(state), () => space(state), () => distributions(state));
    if (data.parameters.length + data.outputs.length > 1) jobs.push(() => parallel(state));
    if (data.fields.length && data.done.length) jobs.push(() => fields(state));
    if (data.failed.length) jobs.push(() => failures(state));
  } else {
    jobs.push(() => ranking(state));
  }
  toolbar(state);
  followKeys(state.selection);
  state.selection.follow(() => showRow(state));
  state.selection.follow(() => showSet(state));
  state.selection.follow(() => allFigures.forEach((figure) => figure.selected()));
  showRow(state);
  const farm = document.getElementById("farm");
  farm.addEventListener("toggle", () => farm.open && aboutFarm(state), { once: true });
  const redraw = () => allFigures.forEach((figure) => figure.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  // One figure's section after another, so that the page can be read meanwhile.
  const next = () => {
    const job = jobs.shift();
    if (!job) {
      document.body.dataset.ready = "yes";
      return;
    }
    job();
    allFigures.forEach((figure) => figure.drawn || figure.resized());
    setTimeout(next);
  };
  next();
}

// Parameters with the most influence on the chosen output first, if it is known.
function orderOf(data, state) {
  return () => {
    const output = state.output();
    const group = data.ranking.groups.find((g) => output && (g.output === output.name || g.output === output.output));
    if (!group) return data.parameters;
    const rank = new Map(group.rows.map((row, k) => [row.parameter, k]));
    const of = (column) => rank.get(column.name) ?? Infinity;
    return data.parameters.map((p, k) => [p, k]).sort(([a, i], [b, j]) => of(a) - of(b) || i - j || 0).map(([p]) => p);
  };
}

function describe(data, place, columns) {
  const lines = [`point ${data.index[place]}${data.status[place] > DONE ? `: ${data.statuses[data.status[place]]}` : ""}`];
  for (const column of columns) {
    if (column.kind === "output" && data.status[place] > DONE) continue;
    const value = column.levels.length ? column.at(place) : short(column.raw[place]);
    lines.push(`${column.name} = ${value}${column.unit && value !== "none" ? ` ${column.unit}` : ""}`);
  }
  const failure = data.errors.get(place);
  if (failure) lines.push((data.texts[failure.text] || "").slice(0, 200));
  return lines.join("\n");
}

function shown(id, note) {
  const section = document.getElementById(id);
  section.hidden = false;
  if (note !== undefined) section.querySelector(".note").textContent = note;
  return section;
}

// Makes the first figures of a section at once and the others when they are asked for.
function upTo(section, items, first, make, noun) {
  const grid = section.querySelector(".grid");
  const more = section.querySelector(".more");
  items.slice(0, first).forEach((item) => make(grid, item));
  const rest = items.slice(first);
  if (!rest.length) return;
  more.hidden = false;
  more.textContent = `Show ${rest.length} more ${noun}`;
  more.addEventListener("click", () => {
    more.hidden = true;
    rest.forEach((item) => make(grid, item));
  }, { once: true });
}

function toolbar(state) {
  const { data, selection } = state;
  const output = document.getElementById("output");
  const log = document.getElementById("log");
  const bar = document.getElementById("toolbar");
  bar.hidden = !data.size;
  if (!data.outputs.length) output.closest("label").hidden = log.closest("label").hidden = true;
  data.outputs.forEach((column, k) => output.append(option(k, column.title)));
  output.value = state.chosen;
  const show = () => {
    const column = state.output();
    if (!column) return;
    log.checked = column.log;
    log.disabled = !column.raw.some((v) => v > 0);
  };
  show();
  const redraw = () => {
    for (const figure of allFigures) {
      figure.view = null;
      figure.draw();
    }
    state.zoomed();
  };
  output.addEventListener("change", () => {
    state.chosen = Number(output.value);
    show();
    redraw();
  });
  log.addEventListener("change", () => {
    state.output().setLog(log.checked);
    redraw();
  });
  const modes = [...document.querySelectorAll("[data-mode]")];
  const press = () => modes.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === mode)));
  modes.forEach((b) => b.addEventListener("click", () => {
    mode = b.dataset.mode;
    press();
  }));
  press();
  document.getElementById("reset").addEventListener("click", redraw);
  document.getElementById("clear").addEventListener("click", () => selection.clear());
}

function showSet(state) {
  const { data, selection } = state;
  const { set } = selection;
  document.getElementById("clear").hidden = set === null;
  const output = state.output();
  let text = "";
  if (set !== null) {
    text = `${counted(set.length, "point")} selected`;
    const finite = output ? Array.from(set, (k) => output.raw[k]).filter(Number.isFinite) : [];
    const failed = Array.from(set).filter((k) => data.status[k] > DONE).length;
    if (failed) text += `, ${failed.toLocaleString("en")} failed`;
    if (finite.length > 1) text += `; median ${output.name} ${short(median(finite), 3)}`;
  }
  document.getElementById("set").textContent = text;
}

function against(state) {
  const section = shown("against", "A dot is a point; the line is the median along the parameter. Triangles on the lower edge: failed (red), without a finite number (grey).");
  const order = state.order();
  upTo(section, order, FIRST_FIGURES, (grid, parameter) => {
    new Scatter(grid, state, { x: () => parameter, y: state.output });
  }, "parameters");
}

function ranking(state) {
  const { groups, note } = state.data.ranking;
  if (!groups.length && !note) return;
  const lines = groups.some((g) => g.rows.some((row) => row.confidence));
  const bars = groups.some((g) => g.rows.some((row) => row.first !== undefined));
  const about = groups.map((g) => `${g.measure}, ${counted(g.points, "point")}${g.left_out ? `, ${g.left_out.toLocaleString("en")} left out` : ""}`);
  const same = new Set(about).size === 1;
  const section = shown("ranking", `${groups.length ? `Influence of each parameter${same ? `: ${about[0]}` : ""}.` : ""}${lines ? " Lines: 95 % intervals." : ""}${bars ? " Inner bars: the parameter alone." : ""} ${note}`.trim());
  groups.forEach((group, k) => new Ranking(section.querySelector(".grid"), state, group, same ? "" : about[k]));
}

function space(state) {
  const { parameters } = state.data;
  if (parameters.length < 2) return;
  const section = shown("space", state.data.outputs.length ? "Colour: the output, dark is low and light is high. Triangles: failed points." : "");
  const [across, up] = ["across", "up"].map((id) => document.getElementById(id));
  const order = state.order();
  parameters.forEach((p, k) => [across, up].forEach((list) => list.append(option(k, p.title))));
  across.value = parameters.indexOf(order[0]);
  up.value = parameters.indexOf(order[1]);
  const figure = new Scatter(section.querySelector(".grid"), state, {
    x: () => parameters[across.value], y: () => parameters[up.value],
    colour: state.data.outputs.length ? state.output : null, height: 400, noEdge: true,
  });
  const draw = figure.draw;
  figure.draw = () => {
    draw.call(figure);
    scale(figure, state);
  };
  [across, up].forEach((list) => list.addEventListener("change", () => {
    figure.view = null;
    figure.draw();
  }));
}

// The name of the output and its colours, above the figure.
function scale(figure, state) {
  const output = state.output();
  if (!output) return;
  const bar = element("span", "", "bar");
  bar.style.background = `linear-gradient(to right, ${palette().join(",")})`;
  const number = (value) => short(output.log ? 10 ** value : value);
  figure.heading.textContent = output.title;
  const known = output.low <= output.high;
  figure.subtitle.replaceChildren(...(known ? [number(output.low), bar, number(output.high)] : ["no finite number"]));
}

function distributions(state) {
  const { data } = state;
  const scaled = data.weights.some((w) => w > 1) ? " Heights are scaled to all points of the sweep." : "";
  const section = shown("distributions", `Outputs, then parameters.${data.failed.length ? " Red: failed points." : ""} Click on a bar, or drag over several, to select its points.${scaled}`);
  const columns = [...data.outputs, ...data.parameters];
  upTo(section, columns, FIRST_HISTOGRAMS, (grid, column) => new Histogram(grid, state, { column: () => column }), "histograms");
}

function parallel(state) {
  const { data } = state;
  const section = shown("parallel", "A line is a point, in the colour of the output. Drag along an axis to keep the points between both ends; drags along other axes narrow further.");
  const columns = () => {
    const output = state.output();
    const room = MOST_AXES - Math.min(data.outputs.length, 3);
    const others = data.outputs.filter((q) => q !== output).slice(0, 2);
    return [...state.order().slice(0, room), ...others, ...(output ? [output] : [])];
  };
  const left = data.parameters.length - (MOST_AXES - Math.min(data.outputs.length, 3));
  const title = left > 0 ? `${data.parameters.length - left} of ${data.parameters.length} parameters` : "";
  new Parallel(section.querySelector(".grid"), state, { columns, title });
}

function fields(state) {
  const section = shown("fields", "Outputs along their own axes. The selected point is drawn in orange, or as the first image.");
  const grid = section.querySelector(".grid");
  for (const field of state.data.fields) {
    if (field.bands) new Curves(grid, state, field);
    else {
      const line = element("div", "", "grid small");
      grid.append(line);
      pictures(line, state, field);
    }
  }
}

function failures(state) {
  const { data, selection } = state;
  const section = shown("failures", "Errors, and the share of points that failed along each parameter. Click on an error to select its points.");
  const byText = new Map();
  for (const [place, { text }] of data.errors) byText.set(text, [...(byText.get(text) || []), place]);
  const list = document.getElementById("errors");
  const sorted = [...byText].sort((a, b) => b[1].length - a[1].length);
  for (const [text, places] of sorted.slice(0, 12)) {
    const made = button("", () => selection.points(places));
    made.append(element("b", places.length.toLocaleString("en")), element("span", clippedText(data.texts[text])));
    const item = element("li");
    item.append(made);
    list.append(item);
  }
  if (sorted.length > 12) list.append(element("li", `and ${sorted.length - 12} more errors`, "soft"));
  const grid = section.querySelector(".grid");
  state.order().slice(0, FIRST_FIGURES).forEach((p) => new Histogram(grid, state, { column: () => p, share: true }));
}

function clippedText(text) {
  const line = (text || "no text").split("\n")[0];
  return line.length > 200 ? `${line.slice(0, 200)}…` : line;
}

function aboutFarm(state) {
  const host = document.getElementById("farm-figures");
  [Progress, Overhead].forEach((Kind) => new Kind(host, state));
  const wide = element("div", "", "grid one");
  host.after(wide);
  new Gantt(wide, state);
  const times = document.getElementById("run-times");
  state.order().slice(0, FIRST_FIGURES).forEach((p) => {
    new Scatter(times, state, { x: () => p, y: () => state.data.run, noEdge: true });
  });
}
