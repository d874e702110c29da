// Outputs with axes of their own: curves over their entries with bands, and images.

const MOST_CURVES = 50;

class Curves extends Figure {
  constructor(host, state, field) {
    super(host, state, { title: "", height: 300, label: `curves of ${field.name}` });
    this.field = field;
    this.entries = unpacked(field.entries);
    this.places = unpacked(field.places);
    this.values = unpacked(field.values);
    this.bands = unpacked(field.bands);
    this.size = this.entries.length;
    this.entry = new Column({ name: `entry of ${field.name}` }, this.entries, "entry");
    this.number = new Column({ name: field.name, unit: field.unit }, [...this.values, ...this.bands], "output");
    this.heading.textContent = this.number.title;
    this.curves = Math.min(this.places.length, MOST_CURVES);
    this.setLog(this.number.wide);
    this.note();
    if (this.number.raw.some((value) => value > 0)) this.caption.append(this.logBox());
  }

  logBox() {
    const label = element("label");
    const box = element("input");
    box.type = "checkbox";
    box.checked = this.number.log;
    box.addEventListener("change", () => {
      this.setLog(box.checked);
      this.zoom(null);
    });
    label.append(box, " log axis");
    return label;
  }

  // The axis suits the curves and bands that are drawn, not those of all points.
  setLog(log) {
    this.number.setLog(log);
    const curves = this.number.drawn.slice(0, this.curves * this.size);
    [this.number.low, this.number.high] = extent([...curves, ...this.number.drawn.slice(this.values.length)]);
  }

  note() {
    const { field } = this;
    const parts = [`bands: 5–95 % and 25–75 % of ${counted(field.rows, "point")}`, `line: median`];
    parts.push(`thin: ${counted(this.curves, "point")}`);
    if (this.size < field.shape[0]) parts.push(`${this.size} of ${field.shape[0]} entries`);
    this.subtitle.textContent = parts.join(", ");
    const { one } = this.state.selection;
    if (one !== null && this.place(one) < 0) {
      const { data } = this.state;
      const why = data.status[one] === DONE ? "has no curve in this report" : `is ${data.statuses[data.status[one]]}`;
      this.subtitle.textContent += `; point ${data.index[one]} ${why}`;
    }
  }

  place(one) {
    return this.places.indexOf(one);
  }

  curve(values, start) {
    const line = [];
    for (let k = 0; k < this.size; k += 1) {
      const value = values[start * this.size + k];
      const drawn = this.number.log ? Math.log10(value) : value;
      line.push([this.entries[k], Number.isFinite(drawn) ? drawn : null]);
    }
    return line;
  }

  drawing(colours) {
    const axes = this.axes(this.entry, this.number, colours, { xRange: padded(0, this.field.shape[0] - 1, 0.01) });
    const line = (id, data, style, z) => ({ id, type: "line", data, silent: true, symbol: "none", z, lineStyle: style });
    const series = [this.band("outer", 0, 4, colours.band, 0.16), this.band("inner", 1, 3, colours.band, 0.24)];
    for (let k = 0; k < this.curves; k += 1) {
      series.push(line(`curve${k}`, this.curve(this.values, k), { color: colours.dot, width: 0.7, opacity: 0.4 }, 2));
    }
    series.push(line("median", this.curve(this.bands, 2), { color: colours.trend, width: 1.8 }, 3));
    series.push(line("one", [], { color: colours.chosen, width: 2.6 }, 5));
    return { ...axes, series };
  }

  band(id, from, to, colour, opacity) {
    const finite = (line) => line.filter(([, y]) => y !== null);
    const outline = [...finite(this.curve(this.bands, from)), ...finite(this.curve(this.bands, to)).reverse()];
    return {
      id, type: "custom", silent: true, clip: true, z: 1, data: outline.length ? [[outline[0][0], outline[0][1]]] : [],
      renderItem: (_, api) => ({
        type: "polygon", shape: { points: outline.map((point) => api.coord(point)) }, style: { fill: colour, opacity },
      }),
    };
  }

  selectionSeries() {
    this.note();
    const { one } = this.state.selection;
    const at = one === null ? -1 : this.place(one);
    return [{ id: "one", data: at < 0 ? [] : this.curve(this.values, at) }];
  }

  marks() {
    const [places, x, y] = [[], [], []];
    for (let curve = 0; curve < this.curves; curve += 1) {
      for (const [entry, value] of this.curve(this.values, curve)) {
        if (value === null) continue;
        places.push(this.places[curve]);
        x.push(this.pixelX(entry));
        y.push(this.pixelY(value));
      }
    }
    return { places, x, y };
  }

  tip(x, y) {
    const place = this.nearest(x, y);
    if (place === null) return "";
    const at = this.place(place);
    const entry = this.entries.reduce((best, e, k) => (Math.abs(this.pixelX(e) - x) < Math.abs(this.pixelX(this.entries[best]) - x) ? k : best), 0);
    const { data } = this.state;
    return `point ${data.index[place]}\n${this.field.name}[${this.entries[entry]}] = ${short(this.values[at * this.size + entry])}`;
  }

  order() {
    return Array.from(this.places).sort((a, b) => a - b);
  }
}

// One picture of an output with two axes; numbers() returns those of its cells and a title.
class Picture extends Figure {
  constructor(host, state, field, { numbers, limits }) {
    super(host, state, { title: "", height: 250, label: `image of ${field.name}` });
    Object.assign(this, { field, numbers, limits });
    const [rows, columns] = field.shape;
    this.row = new Column({ name: `${field.name}, first index` }, [0, rows - 1], "entry");
    this.column = new Column({ name: `${field.name}, second index` }, [0, columns - 1], "entry");
  }

  get zooms() {
    return false;
  }

  drawing(colours) {
    const { title, note, values } = this.numbers();
    this.values = values;
    this.heading.textContent = title;
    const [rows, columns] = this.field.shape;
    const axes = this.axes(this.column, this.row, colours, { xRange: [-0.5, columns - 0.5], yRange: [-0.5, rows - 0.5] });
    for (const axis of [axes.xAxis, axes.yAxis]) axis.splitLine = { show: false };
    axes.yAxis.inverse = true;
    const [high, wide] = this.field.reduced;
    const shades = Array.from({ length: 64 }, (_, k) => mixed(k / 63));
    const [low, top] = values ? this.limits(values) : [0, 1];
    this.subtitle.textContent = values && low <= top ? `${short(low)} to ${short(top)}${this.field.unit ? ` ${this.field.unit}` : ""}${note}` : note;
    const cells = [];
    for (let k = 0; values && k < high * wide; k += 1) if (Number.isFinite(values[k])) cells.push([k % wide, Math.floor(k / wide), values[k]]);
    const across = (k) => starts(columns, wide, k) - 0.5;
    const down = (k) => starts(rows, high, k) - 0.5;
    return {
      ...axes,
      series: [{
        id: "cells", type: "custom", silent: true, clip: true, progressive: 0, data: cells,
        encode: { x: 0, y: 1 },
        renderItem: (_, api) => {
          const [i, j] = [api.value(0), api.value(1)];
          const [x, y] = api.coord([across(i), down(j)]);
          const [right, bottom] = api.coord([across(i + 1), down(j + 1)]);
          return {
            type: "rect", shape: { x, y, width: right - x + 0.6, height: bottom - y + 0.6 },
            style: { fill: shades[colourOf(api.value(2), low, top, shades)] },
          };
        },
      }],
    };
  }

  selected() {
    if (this.drawn && this.follows) this.draw();
  }

  draw() {
    const following = this.follows;
    this.follows = false;
    super.draw();
    this.follows = following;
  }

  tip(x, y) {
    const { field, box } = this;
    const [rows, columns] = field.shape;
    const [high, wide] = field.reduced;
    const [i, j] = [(x - box.left) / box.width, (y - box.top) / box.height];
    if (!this.values || i < 0 || i >= 1 || j < 0 || j >= 1) return "";
    const [column, row] = [Math.floor(i * columns), Math.floor(j * rows)];
    const cell = Math.floor(((row + 0.999) * high) / rows) * wide + Math.floor(((column + 0.999) * wide) / columns);
    return `${field.name}[${row},${column}] = ${short(this.values[Math.min(cell, this.values.length - 1)])}`;
  }

  draggedOver() {}

  order() {
    return Array.from(unpacked(this.field.places)).sort((a, b) => a - b);
  }
}

// The first entry of a block along a side, as the report's writer cut it.
function starts(size, blocks, k) {
  return Math.floor((k * size) / blocks);
}

function pictures(host, state, field) {
  const places = unpacked(field.places);
  const values = unpacked(field.values);
  const size = field.reduced[0] * field.reduced[1];
  const [mean, sd] = [unpacked(field.mean), unpacked(field.sd)];
  const title = field.unit ? `${field.name} (${field.unit})` : field.name;
  const less = size < field.shape[0] * field.shape[1] ? `; ${field.shape.join(" × ")} entries in ${field.reduced.join(" × ")} blocks` : "";
  const over = ` over ${counted(field.rows, "point")}`;
  const one = () => {
    const { selection, data } = state;
    const at = selection.one === null ? 0 : places.indexOf(selection.one);
    const point = selection.one === null ? places[0] : selection.one;
    if (point === undefined) return { title, note: "no point is done", values: null };
    const name = `${title}, point ${data.index[point]}`;
    if (at < 0) return { title: name, note: data.status[selection.one] === DONE ? `not in this report, which has images of ${counted(places.length, "point")}` : data.statuses[data.status[selection.one]], values: null };
    return { title: name, note: less, values: values.slice(at * size, (at + 1) * size) };
  };
  const point = new Picture(host, state, field, { numbers: one, limits: (shown) => extent(shown) });
  point.follows = true;
  new Picture(host, state, field, { numbers: () => ({ title: `${title}, mean`, note: over + less, values: mean }), limits: () => extent(mean) });
  new Picture(host, state, field, { numbers: () => ({ title: `${title}, standard deviation`, note: over + less, values: sd }), limits: () => extent(sd) });
}
