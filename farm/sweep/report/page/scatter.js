// Points over two columns: an output or the run time over a parameter, or two parameters.

const EDGE = 5;
const FEW = 40;
const TREND_BINS = 14;

function sizeOf(count) {
  return count > 3000 ? 2.6 : count > 600 ? 3.6 : count > 150 ? 5 : 7;
}

function dots(id, data, colour, size, more = {}) {
  return {
    id, type: "scatter", large: true, largeThreshold: 500, progressive: 0, silent: true, data,
    symbolSize: size, itemStyle: { color: colour, opacity: 0.6 }, clip: true, ...more,
  };
}

class Scatter extends Figure {
  // x, y: functions that return the columns; colour: one that returns a column, or null.
  constructor(host, state, { x, y, colour = null, height, noEdge = false }) {
    super(host, state, { title: "", height, label: `${y() ? y().name : ""} over ${x().name}` });
    Object.assign(this, { x, y, colour, noEdge });
  }

  shownColumns() {
    return [this.x(), this.y(), ...(this.colour ? [this.colour()] : [])];
  }

  drawing(colours) {
    const { data } = this.state;
    const [x, y] = [this.x(), this.y()];
    this.heading.textContent = `${y.title} over ${x.name}`;
    const axes = this.axes(x, y, colours);
    const [xs, ys] = [jittered(x), jittered(y)];
    this.at = { xs, ys };
    const colour = this.colour && this.colour();
    const inPlace = (k) => Number.isFinite(xs[k]) && Number.isFinite(ys[k]);
    const drawn = data.everywhere.filter((k) => inPlace(k) && (!colour || data.status[k] === DONE));
    this.drawnPlaces = drawn;
    // Without a number to draw, a point is a mark on the lower edge.
    this.onEdge = this.noEdge ? [] : data.everywhere.filter((k) => Number.isFinite(xs[k]) && !inPlace(k));
    const size = sizeOf(drawn.length);
    const opacity = drawn.length > 2000 ? 0.5 : 0.75;
    const pairs = (places) => Array.from(places, (k) => [xs[k], ys[k]]);
    const series = colour
      ? this.coloured(drawn, colour, pairs, Math.max(size, 3.6))
      : [dots("dots", pairs(drawn), colours.dot, size, { itemStyle: { color: colours.dot, opacity } })];
    const low = this.ranges.y[0];
    const high = this.ranges.y[1];
    this.edge = low + (EDGE / Math.max(this.box.height, 1)) * (high - low);
    const mark = (id, places, fill) =>
      dots(id, Array.from(places, (k) => [xs[k], this.edge]), fill, 7, { symbol: "triangle", z: 3, itemStyle: { color: fill, opacity: 0.85 } });
    series.push(mark("failed", this.onEdge.filter((k) => data.status[k] > DONE), colours.failed));
    series.push(mark("unknown", this.onEdge.filter((k) => data.status[k] <= DONE), colours.soft));
    if (colour) {
      const failed = data.failed.filter(inPlace);
      this.drawnPlaces = [...drawn, ...failed];
      series.push(dots("bad", pairs(failed), colours.failed, 6, { symbol: "triangle", z: 3, itemStyle: { color: colours.failed, opacity: 0.9 } }));
    } else if (!x.levels.length && drawn.length >= FEW) {
      const line = trend(drawn, x.drawn, y.drawn);
      series.push({ id: "trend", type: "line", data: line, silent: true, symbol: "none", z: 4, lineStyle: { color: colours.trend, width: 1.6, opacity: 0.9 } });
    }
    const missing = data.size - data.everywhere.filter((k) => Number.isFinite(x.drawn[k])).length;
    this.subtitle.textContent = missing ? `${counted(missing, "point")} without ${x.name}` : "";
    return { ...axes, series: [...series, dots("set", [], colours.chosen, size + 1.4, { z: 5 }), this.ring([], colours)] };
  }

  // A series for each colour: the library draws many points of one colour fast.
  coloured(drawn, colour, pairs, size) {
    const shades = palette();
    const groups = shades.map(() => []);
    for (const k of drawn) {
      if (Number.isFinite(colour.drawn[k])) groups[colourOf(colour.drawn[k], colour.low, colour.high, shades)].push(k);
    }
    return groups.map((places, k) => dots(`dots${k}`, pairs(places), shades[k], size, { itemStyle: { color: shades[k], opacity: 0.9 } }));
  }

  ring(data, colours) {
    return {
      id: "one", type: "scatter", data, silent: true, z: 6, symbolSize: 13,
      itemStyle: { color: "transparent", borderColor: colours.chosen, borderWidth: 2.5 },
    };
  }

  selectionSeries(colours) {
    const { one, set } = this.state.selection;
    const place = (k) => [this.at.xs[k], Number.isFinite(this.at.ys[k]) ? this.at.ys[k] : this.edge];
    const there = (k) => Number.isFinite(this.at.xs[k]) && (Number.isFinite(this.at.ys[k]) || !this.noEdge);
    return [
      { id: "set", data: set ? Array.from(set).filter(there).map(place) : [] },
      { ...this.ring(one !== null && there(one) ? [place(one)] : [], colours) },
    ];
  }

  marks() {
    const places = [...this.drawnPlaces, ...this.onEdge];
    const edge = this.pixelY(this.edge);
    const y = (k) => (Number.isFinite(this.at.ys[k]) ? this.pixelY(this.at.ys[k]) : edge);
    return {
      places,
      x: Float64Array.from(places, (k) => this.pixelX(this.at.xs[k])),
      y: Float64Array.from(places, y),
    };
  }
}

// The medians of y in bins of x with as many points each.
function trend(places, xs, ys) {
  const order = Array.from(places).sort((a, b) => xs[a] - xs[b]);
  const bins = Math.min(TREND_BINS, Math.floor(order.length / 12));
  const line = [];
  for (let bin = 0; bin < bins; bin += 1) {
    const part = order.slice(Math.floor((bin * order.length) / bins), Math.floor(((bin + 1) * order.length) / bins));
    const x = median(part.map((k) => xs[k]));
    if (!line.length || x > line[line.length - 1][0]) line.push([x, median(part.map((k) => ys[k]))]);
  }
  return line.length > 2 ? line : [];
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
