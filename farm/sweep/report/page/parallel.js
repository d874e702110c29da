// Parallel coordinates: a line for each point over axes of parameters and outputs.

const MOST_LINES = 1000;
const AXIS_WIDTH = 84;

class Parallel extends Figure {
  constructor(host, state, { columns, title }) {
    super(host, state, { title, height: 330, label: "parallel coordinates of parameters and outputs" });
    this.columns = columns;
    this.limits = new Map();
    this.canvas.style.minWidth = `${columns().length * AXIS_WIDTH}px`;
  }

  get zooms() {
    return false;
  }

  drawing(colours) {
    const { data } = this.state;
    const columns = this.columns();
    this.shown = columns;
    const width = this.canvas.clientWidth;
    const side = width > 600 ? 76 : 56; // half of the name of an outermost axis has to fit
    const [left, right, top, bottom] = [side, side, 44, 18];
    this.box = { left, top, width: width - left - right, height: this.canvas.clientHeight - top - bottom };
    this.scales = columns.map(rangeOf);
    this.values = columns.map(jittered);
    const step = Math.max(1, Math.ceil(data.size / MOST_LINES));
    this.lines = Array.from(data.everywhere).filter((k) => k % step === 0 && columns.some((c) => Number.isFinite(c.drawn[k])));
    this.subtitle.textContent = step > 1 ? `${counted(this.lines.length, "line")} of ${counted(data.size, "point")} of this report` : "";
    const spacing = this.box.width / Math.max(columns.length - 1, 1);
    const output = this.state.output();
    const shades = palette();
    const colour = (k) => {
      if (data.status[k] > DONE) return colours.failed;
      const value = output ? output.drawn[k] : NaN;
      return Number.isFinite(value) ? shades[colourOf(value, output.low, output.high, shades)] : colours.soft;
    };
    this.colour = colour;
    const opacity = this.lines.length > 400 ? 0.35 : 0.6;
    return {
      parallel: { left, right, top, bottom, axisExpandable: false },
      parallelAxis: columns.map((column, dim) => axisOf(column, this.scales[dim], 6, colours, {
        labelWidth: spacing - 14, label: { backgroundColor: colours.card, padding: [0, 2], borderRadius: 3 },
        axis: {
          dim, id: `axis${dim}`, z: 10, name: clipped(column.title, Math.max(Math.min(spacing - 8, 2 * side - 8), 40)), nameLocation: "end", nameGap: 16,
          nameTextStyle: { color: colours.text, fontSize: 11 }, splitLine: { show: false },
          axisLine: { show: true, lineStyle: { color: colours.soft, width: 1.5 } },
        },
      })),
      series: [
        { id: "lines", type: "parallel", silent: true, progressive: 0, data: this.lines.map((k) => this.line(k, colour(k), opacity)), inactiveOpacity: 0.04, activeOpacity: 0.8 },
        { id: "set", type: "parallel", silent: true, z: 4, data: [] },
      ],
    };
  }

  line(k, color, opacity, width = 1) {
    return { value: this.values.map((v) => (Number.isFinite(v[k]) ? v[k] : "-")), lineStyle: { color, opacity, width } };
  }

  selectionSeries(colours) {
    const { one, set } = this.state.selection;
    const faded = set !== null;
    const opacity = faded ? 0.06 : this.lines.length > 400 ? 0.35 : 0.6;
    const chosen = Array.from(set || []).slice(0, MOST_LINES).map((k) => this.line(k, this.colour(k), 0.85, 1.3));
    if (one !== null) chosen.push(this.line(one, colours.chosen, 1, 3));
    const series = [{ id: "set", data: chosen }];
    if (faded !== this.faded || this.redrawn !== this.lines) {
      series.push({ id: "lines", data: this.lines.map((k) => this.line(k, this.colour(k), opacity)) });
      [this.faded, this.redrawn] = [faded, this.lines];
    }
    return series;
  }

  axisX(dim) {
    return this.box.left + (dim / Math.max(this.shown.length - 1, 1)) * this.box.width;
  }

  heightAt(dim, value) {
    const [low, high] = this.scales[dim];
    return this.box.top + (1 - (value - low) / (high - low)) * this.box.height;
  }

  nearest(x, y) {
    const place = ((x - this.box.left) / this.box.width) * (this.shown.length - 1);
    const dim = Math.min(Math.max(Math.floor(place), 0), Math.max(this.shown.length - 2, 0));
    const next = Math.min(dim + 1, this.shown.length - 1);
    const share = Math.min(Math.max(place - dim, 0), 1);
    let best = null;
    let least = NEAR;
    for (const k of this.lines) {
      const [from, to] = [this.values[dim][k], this.values[next][k]];
      const height = (1 - share) * this.heightAt(dim, from) + share * this.heightAt(next, to);
      const distance = Math.abs(height - y);
      if (distance < least) [best, least] = [k, distance];
    }
    return best;
  }

  shownColumns() {
    return this.shown;
  }

  // A drag along an axis keeps the points between its ends; drags along other axes narrow further.
  draggedOver(line) {
    const [left, right] = extent(line.map(([x]) => x));
    const middle = mode === "lasso" ? (left + right) / 2 : line[0][0];
    const place = ((middle - this.box.left) / this.box.width) * Math.max(this.shown.length - 1, 1);
    const dim = Math.min(Math.max(Math.round(place), 0), this.shown.length - 1);
    const [low, high] = this.scales[dim];
    const value = (y) => low + (1 - (y - this.box.top) / this.box.height) * (high - low);
    const [top, bottom] = extent(line.map(([, y]) => y));
    if (this.state.selection.set === null) this.limits.clear();
    this.limits.set(dim, [value(bottom), value(top)]);
    const within = (k) => [...this.limits].every(([d, [from, to]]) => this.shown[d].drawn[k] >= from && this.shown[d].drawn[k] <= to);
    const found = this.state.data.everywhere.filter(within);
    if (!found.length) this.limits.clear();
    this.state.selection.points(found);
  }

  order() {
    const values = this.state.output() ? this.state.output().drawn : this.values[0];
    return Array.from(this.lines).sort((a, b) => values[a] - values[b]);
  }
}
