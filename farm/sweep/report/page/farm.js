// Figures about the farm: progress, the workers' runs, overhead.

class Progress extends Figure {
  constructor(host, state) {
    super(host, state, { title: "Points finished", label: "points finished over time" });
    const { progress, size } = state.data.operation;
    this.times = unpacked(progress.times);
    this.counts = unpacked(progress.counts);
    this.size = size;
  }

  drawing(colours) {
    const end = this.times.length ? this.times[this.times.length - 1] : 1;
    const [unit, scale] = timeUnit(end);
    const time = new Column({ name: "time", unit }, [0, end / scale], "time");
    const count = new Column({ name: "points finished" }, [0, this.size], "count");
    const axes = this.axes(time, count, colours, { yRange: [0, this.size * 1.05 || 1] });
    return {
      ...axes,
      series: [
        { type: "line", step: "end", symbol: "none", silent: true, data: Array.from(this.times, (t, k) => [t / scale, this.counts[k]]), lineStyle: { color: colours.dot, width: 1.8 } },
        { type: "line", symbol: "none", silent: true, data: [[0, this.size], [end / scale, this.size]], lineStyle: { color: colours.soft, width: 1, type: "dotted" } },
      ],
    };
  }

  tip(x) {
    const [unit] = timeUnit(this.times.length ? this.times[this.times.length - 1] : 1);
    const time = this.valueX(x);
    return time < 0 ? "" : `${short(time, 3)} ${unit}`;
  }
}

class Gantt extends Figure {
  constructor(host, state) {
    const { workers, more } = state.data.operation.gantt;
    super(host, state, { title: "Workers", height: Math.min(70 + 18 * Math.max(workers.length, 3), 640), label: "runs of each worker over time" });
    this.bars = unpacked(state.data.operation.gantt.bars);
    this.workers = workers;
    this.subtitle.textContent = `bars are runs, gaps are idle time${more ? `; ${more} more workers` : ""}`;
  }

  drawing(colours) {
    const runs = [];
    let end = 1e-3;
    for (let k = 0; k < this.bars.length; k += 3) {
      runs.push([this.bars[k], this.bars[k + 1], this.bars[k + 2]]);
      end = Math.max(end, this.bars[k + 1] + this.bars[k + 2]);
    }
    const [unit, scale] = timeUnit(end);
    this.scale = scale;
    const time = new Column({ name: "time", unit }, [0, end / scale], "time");
    const names = this.workers.map((w) => this.state.data.workers[w] || String(w));
    const worker = new Column({ name: "worker", levels: names.length ? names : ["no worker"] }, [0], "worker");
    const axes = this.axes(time, worker, colours, { xRange: [0, (end / scale) * 1.02] });
    axes.yAxis.inverse = true;
    axes.yAxis.axisTick.show = false;
    return { ...axes, series: [this.runs("runs", runs, colours.dot, 0.85), this.runs("one", [], colours.chosen, 1)] };
  }

  runs(id, runs, colour, opacity) {
    return {
      id, type: "custom", silent: true, clip: true, progressive: 0, encode: { x: 1, y: 0 }, data: runs,
      renderItem: (_, api) => {
        const [x, y] = api.coord([api.value(1) / this.scale, api.value(0)]);
        const [right] = api.coord([(api.value(1) + api.value(2)) / this.scale, api.value(0)]);
        const height = Math.max(api.size([0, 1])[1] * 0.72, 2);
        return { type: "rect", shape: { x, y: y - height / 2, width: Math.max(right - x, 0.8), height }, style: { fill: colour, opacity } };
      },
    };
  }

  selectionSeries(colours) {
    const { data, selection } = this.state;
    const { one } = selection;
    const line = one === null ? -1 : this.workers.indexOf(data.worker[one]);
    return [this.runs("one", line < 0 ? [] : [[line, data.start[one], data.run.raw[one]]], colours.chosen, 1)];
  }

  marks() {
    const { data } = this.state;
    const lines = new Map(this.workers.map((w, line) => [w, line]));
    const places = data.everywhere.filter((k) => lines.has(data.worker[k]) && Number.isFinite(data.start[k]));
    return {
      places,
      x: Float64Array.from(places, (k) => this.pixelX((data.start[k] + data.run.raw[k] / 2) / this.scale)),
      y: Float64Array.from(places, (k) => {
        const share = (lines.get(data.worker[k]) + 0.5) / Math.max(this.workers.length, 1);
        return this.view ? NaN : this.box.top + share * this.box.height;
      }),
    };
  }

  shownColumns() {
    return [this.state.data.run];
  }

  get zooms() {
    return false;
  }
}

class Overhead extends Figure {
  constructor(host, state) {
    super(host, state, { title: "Overhead of a point", label: "histogram of the overhead of points" });
    this.about = state.data.operation.overhead;
    this.counts = unpacked(this.about.counts);
    const { median: middle } = this.about;
    this.subtitle.textContent = middle === null
      ? "no point has one"
      : `time from submission to answer, minus model and queue: median ${seconds(middle / 1e3)}`;
  }

  get zooms() {
    return false;
  }

  drawing(colours) {
    const { low, high } = this.about;
    const time = new Column({ name: "overhead", unit: "ms", log: true }, [10 ** low, 10 ** high], "time");
    const top = Math.max(1, ...this.counts) * 1.06;
    const count = new Column({ name: "points" }, [0, top], "count");
    const axes = this.axes(time, count, colours, { yRange: [0, top] });
    const width = (high - low) / Math.max(this.counts.length, 1);
    return {
      ...axes,
      series: [{
        type: "custom", silent: true, data: Array.from(this.counts, (n, k) => [low + k * width, low + (k + 1) * width, n]),
        renderItem: (_, api) => {
          const [x, y] = api.coord([api.value(0), api.value(2)]);
          const [right, bottom] = api.coord([api.value(1), 0]);
          return { type: "rect", shape: { x, y, width: Math.max(right - x - 1, 1), height: bottom - y }, style: { fill: colours.dot, opacity: 0.85 } };
        },
      }],
    };
  }

  draggedOver() {}
}
