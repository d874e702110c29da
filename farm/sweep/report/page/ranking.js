// The influence of parameters on an output: bars with the interval of confidence.

class Ranking extends Figure {
  // about: what is measured, if the section's note does not say so.
  constructor(host, state, group, about) {
    const lines = Math.max(group.rows.length, 1);
    super(host, state, { title: group.output, height: 46 + 22 * lines, label: `sensitivity of ${group.output}` });
    this.group = group;
    this.subtitle.textContent = about;
  }

  get zooms() {
    return false;
  }

  drawing(colours) {
    const { rows } = this.group;
    const known = rows.filter((row) => row.value !== null);
    const ends = known.flatMap((row) => [row.value - (row.confidence || 0), row.value + (row.confidence || 0)]);
    const [low, high] = extent([0, ...ends]);
    const values = new Column({ name: "" }, [low, high], "measure");
    const names = new Column({ name: "parameter", levels: rows.map((row) => row.parameter).reverse() }, [0], "parameter");
    const top = high > low ? high + 0.04 * (high - low) : low + 1;
    const axes = this.axes(values, names, colours, { xRange: [Math.min(low, 0), top], noX: true });
    Object.assign(axes.yAxis.axisTick, { show: false });
    axes.xAxis.splitLine = { show: true, lineStyle: { color: colours.grid } };
    const line = (k) => rows.length - 1 - k;
    return {
      ...axes,
      series: [{
        id: "bars", type: "custom", silent: true, encode: { x: 0, y: 1 },
        data: rows.map((row, k) => [row.value || 0, line(k), row.confidence || 0, row.first === undefined || row.first === null ? NaN : row.first]),
        renderItem: (_, api) => {
          const [value, place, half, first] = [0, 1, 2, 3].map((k) => api.value(k));
          const [zero, y] = api.coord([0, place]);
          const [end] = api.coord([value, place]);
          const bar = (to, height, opacity) => ({
            type: "rect", style: { fill: colours.dot, opacity },
            shape: { x: Math.min(zero, to), y: y - height / 2, width: Math.max(Math.abs(to - zero), 1), height },
          });
          const children = [bar(end, 14, Number.isFinite(first) ? 0.4 : 0.85)];
          if (Number.isFinite(first)) children.push(bar(api.coord([first, place])[0], 7, 0.95));
          if (half > 0) {
            const [from] = api.coord([value - half, place]);
            const [to] = api.coord([value + half, place]);
            const stroke = { stroke: colours.trend, lineWidth: 1.4 };
            const stick = (x1, y1, x2, y2) => children.push({ type: "line", shape: { x1, y1, x2, y2 }, style: stroke });
            stick(from, y, to, y);
            stick(from, y - 4, from, y + 4);
            stick(to, y - 4, to, y + 4);
          }
          return { type: "group", children };
        },
      }],
    };
  }

  tip(x, y) {
    const k = Math.floor(((y - this.box.top) / this.box.height) * this.group.rows.length);
    const row = this.group.rows[k];
    if (!row) return "";
    const half = row.confidence === null ? "" : ` ± ${short(row.confidence, 3)}`;
    const first = row.first === undefined || row.first === null ? "" : `\nalone (S1) ${short(row.first, 3)}`;
    return `${row.parameter}\n${row.value === null ? "not known" : short(row.value, 3)}${half}${first}`;
  }

  draggedOver() {}
}
