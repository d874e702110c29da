// How often the numbers of a column are there: bars for bins, or for categories.

const MOST_BINS = 30;

class Histogram extends Figure {
  // column: a function; share: the part of failed points instead of counts.
  constructor(host, state, { column, title, share = false, height = 150 }) {
    super(host, state, { title: title || column().title, height, label: `histogram of ${column().title}` });
    Object.assign(this, { column, share });
  }

  get zooms() {
    return false;
  }

  drawing(colours) {
    const { data } = this.state;
    const column = this.column();
    const output = column.kind === "output";
    this.heading.textContent = column.title;
    this.bins = binsOf(column, output ? data.done.length : data.size);
    this.members = membersOf(column, this.bins, output ? data.done : data.everywhere);
    this.heights = this.members.map((places) => this.heightOf(places));
    const top = this.share ? 1 : Math.max(1, ...this.heights.map(([all]) => all)) * 1.06;
    const counts = new Column({ name: this.share ? "share failed" : "points" }, [0, top], "count");
    const edges = this.bins;
    const range = edges.length > 1 ? padded(edges[0], edges[edges.length - 1], 0.02) : [0, 1];
    const axes = this.axes(column, counts, colours, { xRange: range, yRange: [0, top], noX: true });
    axes.xAxis.splitLine = { show: false };
    const missing = data.done.filter((k) => !Number.isFinite(column.raw[k])).length;
    const negative = column.log ? data.done.filter((k) => column.raw[k] <= 0).length : 0;
    const notes = [];
    if (output && missing) notes.push(`${counted(missing, "point")} not finite`);
    if (output && negative) notes.push(`${counted(negative, "point")} not above 0`);
    this.subtitle.textContent = notes.join(", ");
    return {
      ...axes,
      series: [
        this.bars("all", this.heights.map(([all]) => all), this.share ? colours.failed : colours.dot, 0.85),
        this.bars("bad", this.share ? [] : this.heights.map(([, bad]) => bad), colours.failed, 0.9),
        this.bars("set", [], colours.chosen, 0.95),
      ],
    };
  }

  // How high the bar of points is, and the part of failed ones.
  heightOf(places) {
    const { data } = this.state;
    let [all, bad] = [0, 0];
    for (const k of places) {
      all += data.weight(k);
      if (data.status[k] > DONE) bad += data.weight(k);
    }
    return this.share ? [all ? bad / all : 0, 0] : [all, bad];
  }

  bars(id, heights, colour, opacity) {
    const edges = this.bins;
    return {
      id, type: "custom", silent: true, clip: true,
      data: heights.map((height, k) => [edges[k], edges[k + 1], height]).filter(([, , height]) => height > 0),
      renderItem: (_, api) => {
        const [x, y] = api.coord([api.value(0), api.value(2)]);
        const [right, bottom] = api.coord([api.value(1), 0]);
        const gap = right - x > 4 ? 1 : 0;
        return {
          type: "rect", style: { fill: colour, opacity },
          shape: { x: x + gap / 2, y: Math.min(y, bottom - 1), width: Math.max(right - x - gap, 1), height: Math.max(bottom - y, 1) },
        };
      },
    };
  }

  selectionSeries(colours) {
    const { one, set } = this.state.selection;
    const chosen = new Set(set || (one === null ? [] : [one]));
    const heights = this.share || !chosen.size ? [] : this.members.map((places) => {
      const among = places.filter((k) => chosen.has(k));
      return this.heightOf(among)[0];
    });
    return [this.bars("set", heights, colours.chosen, 0.95)];
  }

  binAt(x) {
    const value = this.valueX(x);
    return this.members.findIndex((_, k) => value >= this.bins[k] && value < this.bins[k + 1]);
  }

  tip(x) {
    const k = this.binAt(x);
    if (k < 0) return "";
    const column = this.column();
    const number = (value) => short(column.log ? 10 ** value : value);
    const where = column.levels.length
      ? column.levels[Math.round((this.bins[k] + this.bins[k + 1]) / 2)]
      : `${number(this.bins[k])} to ${number(this.bins[k + 1])}`;
    const [all, bad] = this.heights[k];
    if (this.share) return `${where}\n${short(100 * all, 3)} % failed`;
    return `${where}\n${counted(all, "point")}${bad ? `, ${counted(bad, "of them")} failed`.replace("thems", "them") : ""}`;
  }

  clicked(x) {
    const k = this.binAt(x);
    if (k >= 0 && this.members[k].length) this.state.selection.points(this.members[k]);
  }

  // Selects the points of the bins between both ends of a drag.
  enclosed(line) {
    const [low, high] = extent(line.map(([x]) => this.valueX(x)));
    const values = this.column().drawn;
    const among = this.members.flat();
    this.state.selection.points(among.filter((k) => values[k] >= low && values[k] <= high).sort((a, b) => a - b));
  }

  draggedOver(line) {
    this.enclosed(line);
  }

  order() {
    const values = this.column().drawn;
    return this.members.flat().sort((a, b) => values[a] - values[b]);
  }
}

function binsOf(column, count) {
  if (column.levels.length) return Array.from({ length: column.levels.length + 1 }, (_, k) => k - 0.5);
  if (!(column.low <= column.high)) return [];
  const [low, high] = column.low === column.high ? padded(column.low, column.high) : [column.low, column.high];
  const bins = Math.min(MOST_BINS, Math.max(5, Math.ceil(2 * Math.cbrt(count))));
  const width = high / bins - low / bins;
  return Array.from({ length: bins + 1 }, (_, k) => (k === bins ? high : low + k * width));
}

function membersOf(column, edges, places) {
  const members = Array.from({ length: Math.max(edges.length - 1, 0) }, () => []);
  const width = edges.length > 1 ? edges[edges.length - 1] / members.length - edges[0] / members.length : 1;
  for (const k of places) {
    const value = column.drawn[k];
    if (!Number.isFinite(value) || !members.length) continue;
    const bin = Math.floor(value / width - edges[0] / width);
    members[Math.min(Math.max(bin, 0), members.length - 1)].push(k);
  }
  return members;
}
