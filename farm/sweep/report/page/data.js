// Reads the data of the page: columns of numbers for each point that it has.

const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

function unpacked(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.type](bytes.buffer);
}

// A column has values for drawing: log10 of the numbers on a log axis, the position of a category.
// at(place) is the number or the word that people read; NaN where there is none.
class Column {
  constructor(about, values, kind) {
    Object.assign(this, { name: about.name, output: about.output, unit: about.unit || "" });
    this.description = about.description || "";
    this.levels = about.levels || [];
    this.kind = kind;
    this.raw = values;
    this.log = false;
    this.setLog(Boolean(about.log));
  }

  get title() {
    return this.unit ? `${this.name} (${this.unit})` : this.name;
  }

  setLog(log) {
    this.log = log && !this.levels.length;
    this.drawn = this.log ? Float64Array.from(this.raw, (v) => (v > 0 ? Math.log10(v) : NaN)) : this.raw;
    [this.low, this.high] = extent(this.drawn);
  }

  // Whether log axes suit: positive numbers over more than two decades and a half.
  get wide() {
    const finite = this.raw.filter(Number.isFinite);
    if (finite.length < 3 || this.levels.length) return false;
    const [low, high] = extent(finite);
    return low > 0 && high / low > 300;
  }

  at(place) {
    const value = this.raw[place];
    if (this.levels.length) return Number.isFinite(value) ? this.levels[value] : "none";
    return full(value);
  }
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

const PENDING = 0;
const DONE = 1;

function readData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const points = data.points;
  const columns = {};
  for (const name of ["index", "status", "attempts", "start", "run", "queue", "worker"]) columns[name] = unpacked(points[name]);
  const size = columns.index.length;
  const parameters = data.parameters.map((p) => new Column(p, unpacked(p.values), "parameter"));
  const outputs = data.outputs.map((q) => new Column(q, unpacked(q.values), "output"));
  for (const output of outputs) output.setLog(output.wide);
  const run = new Column({ name: "run time", unit: "s" }, columns.run, "run");
  run.setLog(run.wide);
  const errors = new Map(data.errors.rows.map(([place, text, traceback]) => [place, { text, traceback }]));
  const everywhere = Int32Array.from({ length: size }, (_, k) => k);
  return {
    ...data, ...columns, size, parameters, outputs, run, errors, everywhere,
    texts: data.errors.texts, tracebacks: data.errors.tracebacks,
    workers: points.workers, statuses: points.statuses,
    done: everywhere.filter((k) => columns.status[k] === DONE),
    failed: everywhere.filter((k) => columns.status[k] > DONE),
    // How many of the sweep's points one point of the page stands for, by status.
    weight: (k) => (columns.status[k] === DONE ? data.weights[0] : data.weights[1]),
  };
}
