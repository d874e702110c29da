// A figure: axes drawn by the library, dragging, tips, and the point nearest to the pointer.

const NEAR = 14;
const CLICK = 4;
const allFigures = new Set();
let mode = "zoom";

class Figure {
  // state: {data, selection, output()}.
  constructor(host, state, { title, height = 230, label = title }) {
    this.state = state;
    this.view = null;
    const figure = element("figure", "", "figure");
    this.caption = element("figcaption");
    this.heading = element("b", title);
    this.subtitle = element("span");
    this.caption.append(this.heading, this.subtitle);
    const scroll = element("div", "", "scroll");
    this.canvas = element("div", "", "canvas");
    this.canvas.style.height = `${height}px`;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    this.canvas.figure = this;
    scroll.append(this.canvas);
    figure.append(this.caption, scroll);
    host.append(figure);
    this.element = figure;
    this.chart = echarts.init(this.canvas, null, { renderer: "canvas" });
    this.overlay = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.overlay.setAttribute("class", "drag");
    this.path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    this.overlay.append(this.path);
    this.canvas.append(this.overlay);
    this.listen();
    new ResizeObserver(() => this.resized()).observe(this.canvas);
    allFigures.add(this);
  }

  resized() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || (clientWidth === this.width && clientHeight === this.tall)) return;
    [this.width, this.tall] = [clientWidth, clientHeight];
    this.chart.resize();
    this.draw();
  }

  remove() {
    allFigures.delete(this);
    this.chart.dispose();
    this.element.remove();
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    this.chart.setOption({ animation: false, ...this.drawing(theme()) }, { notMerge: true });
    this.pixels = null;
    this.drawn = true;
    this.selected();
  }

  // Redraws what depends on the selection alone.
  selected() {
    if (this.drawn) {
      const series = this.selectionSeries(theme());
      if (series.length) this.chart.setOption({ series });
    }
  }

  selectionSeries() {
    return [];
  }

  // The options of both axes: x and y are columns, named below and beside the figure.
  axes(x, y, colours, more = {}) {
    const xRange = this.view ? this.view.x : more.xRange || rangeOf(x);
    const yRange = this.view ? this.view.y : more.yRange || rangeOf(y);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const upTicks = Math.max(2, Math.floor(height / (y.levels.length ? 15 : 45)));
    const labels = more.noY ? [] : ticksOf(y, ...yRange, upTicks).map(([, label]) => widthOf(label));
    const left = Math.min(Math.max(18, ...labels) + 16, 110);
    const inside = width - left - 16;
    const acrossTicks = Math.max(3, Math.floor(inside / (x.levels.length ? 45 : 62)));
    const room = x.levels.length ? inside / Math.max(1, Math.min(x.levels.length, acrossTicks)) - 6 : 80;
    const name = { nameLocation: "middle", nameTextStyle: { color: colours.soft, fontSize: 11 } };
    const xName = more.noX ? {} : { ...name, name: clipped(x.title, inside), nameGap: 24 };
    this.box = { left, top: 10, width: inside, height: height - 10 - (more.noX ? 24 : 40) };
    this.ranges = { x: xRange, y: yRange };
    return {
      grid: { ...this.box, outerBoundsMode: "none" },
      xAxis: axisOf(x, xRange, acrossTicks, colours, { axis: xName, labelWidth: room }),
      yAxis: axisOf(y, yRange, upTicks, colours, { labelWidth: 92, axis: more.noY ? { show: false } : {} }),
    };
  }

  pixelX(value) {
    const [low, high] = this.ranges.x;
    return this.box.left + ((value - low) / (high - low)) * this.box.width;
  }

  pixelY(value) {
    const [low, high] = this.ranges.y;
    return this.box.top + (1 - (value - low) / (high - low)) * this.box.height;
  }

  valueX(pixel) {
    const [low, high] = this.ranges.x;
    return low + ((pixel - this.box.left) / this.box.width) * (high - low);
  }

  valueY(pixel) {
    const [low, high] = this.ranges.y;
    return low + (1 - (pixel - this.box.top) / this.box.height) * (high - low);
  }

  // The points that can be picked, with their places in pixels: {places, x, y}.
  marks() {
    return { places: [], x: [], y: [] };
  }

  known() {
    if (!this.pixels) this.pixels = this.marks();
    return this.pixels;
  }

  nearest(x, y) {
    const { places, x: xs, y: ys } = this.known();
    let best = null;
    let least = NEAR ** 2;
    for (let k = 0; k < places.length; k += 1) {
      const distance = (xs[k] - x) ** 2 + (ys[k] - y) ** 2;
      if (distance < least) [best, least] = [places[k], distance];
    }
    return best;
  }

  // The places of points from left to right, for the keyboard.
  order() {
    const { places, x } = this.known();
    const order = Array.from(places, (place, k) => [x[k], place]);
    return order.sort((a, b) => a[0] - b[0]).map(([, place]) => place);
  }

  tip(x, y) {
    const place = this.nearest(x, y);
    return place === null ? "" : this.state.describe(place, this.shownColumns());
  }

  shownColumns() {
    return [];
  }

  clicked(x, y) {
    const place = this.nearest(x, y);
    if (place !== null) this.state.selection.point(place);
  }

  // Selects the points in a closed line of pixels.
  enclosed(line) {
    const { places, x, y } = this.known();
    const found = [];
    for (let k = 0; k < places.length; k += 1) if (inside(line, x[k], y[k])) found.push(places[k]);
    this.state.selection.points(found.sort((a, b) => a - b));
  }

  zoom(view) {
    this.view = view;
    this.draw();
    this.state.zoomed();
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.dragging = [at(event)];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.dragging) return showTip(event, this.box ? this.tip(...at(event)) : "");
      this.dragging.push(at(event));
      hideTip();
      this.path.setAttribute("d", `M${dragged(this.dragging).map((p) => p.join()).join("L")}Z`);
    });
    const ended = (event, done) => {
      const line = this.dragging;
      this.dragging = null;
      this.path.removeAttribute("d");
      if (!line || !done) return;
      line.push(at(event));
      const far = line.some(([x, y]) => Math.hypot(x - line[0][0], y - line[0][1]) > CLICK);
      if (!far) this.clicked(...line[0]);
      else this.draggedOver(dragged(line));
    };
    this.canvas.addEventListener("pointerup", (event) => ended(event, true));
    this.canvas.addEventListener("pointercancel", (event) => ended(event, false));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("dblclick", () => this.view && this.zoom(null));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey || !this.zooms || !this.ranges) return;
      event.preventDefault();
      const [x, y] = at(event);
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      const around = ([low, high], centre) => [centre + (low - centre) * factor, centre + (high - centre) * factor];
      this.zoom({ x: around(this.ranges.x, this.valueX(x)), y: around(this.ranges.y, this.valueY(y)) });
    }, { passive: false });
  }

  get zooms() {
    return true;
  }

  draggedOver(line) {
    if (mode !== "zoom") return this.enclosed(line);
    if (!this.zooms || !this.ranges) return undefined;
    const xs = extent(line.map(([x]) => this.valueX(x)));
    const ys = extent(line.map(([, y]) => this.valueY(y)));
    if (xs[1] > xs[0] && ys[1] > ys[0]) this.zoom({ x: xs, y: ys });
    return undefined;
  }
}

// The closed line of a drag: a rectangle, but for a lasso.
function dragged(line) {
  if (mode === "lasso") return line;
  const [[x, y], [right, bottom]] = [line[0], line[line.length - 1]];
  return [[x, y], [right, y], [right, bottom], [x, bottom]];
}

function inside(line, x, y) {
  let within = false;
  for (let k = 0, j = line.length - 1; k < line.length; j = k, k += 1) {
    const [[ax, ay], [bx, by]] = [line[k], line[j]];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) within = !within;
  }
  return within;
}

function showTip(event, text) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  tip.textContent = text;
  if (!text) return;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(Math.min(event.clientY + 14, innerHeight - height - 4), 4)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}
