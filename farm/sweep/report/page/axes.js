// Axes of figures. A figure draws on linear axes: a log axis has log10 of its numbers, an axis of
// categories their positions, and the labels show what these stand for.

const CATEGORY_ROOM = 0.5;
const JITTER = 0.28;

function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["card", "line", "text", "soft", "dot", "chosen", "failed", "trend", "band", "grid"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;

const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
const COLOURS = 10;

// The colours of low to high numbers; the ends that one cannot see on the ground are left out.
function palette() {
  const [from, to] = isDark() ? [0.22, 1] : [0, 0.93];
  return Array.from({ length: COLOURS }, (_, k) => mixed(from + ((to - from) * k) / (COLOURS - 1)));
}

function mixed(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const channel = (text, k) => parseInt(text.slice(1 + 2 * k, 3 + 2 * k), 16);
  const channels = [0, 1, 2].map((k) => {
    const from = channel(VIRIDIS[low], k);
    return Math.round(from + (place - low) * (channel(VIRIDIS[low + 1], k) - from));
  });
  return `rgb(${channels.join(",")})`;
}

function colourOf(value, low, high, colours) {
  const share = high > low ? (value - low) / (high - low) : 0.5;
  return Math.min(Math.max(Math.floor(share * colours.length), 0), colours.length - 1);
}

// The range of a column's axis: with room at both ends.
function rangeOf(column) {
  if (column.levels.length) return [-CATEGORY_ROOM, column.levels.length - 1 + CATEGORY_ROOM];
  return padded(column.low, column.high);
}

function padded(low, high, share = 0.04) {
  if (!(low <= high)) return [0, 1];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 0.5;
    return [low - room, high + room];
  }
  const room = share * (high - low);
  return Number.isFinite(room) ? [low - room, high + room] : [low, high];
}

// Values of ticks between two ends, and their labels.
function ticksOf(column, low, high, most) {
  if (column.levels.length) {
    const all = column.levels.map((label, k) => [k, label]).filter(([k]) => k >= low && k <= high);
    const step = Math.ceil(all.length / Math.max(most, 1));
    return all.filter((_, k) => k % step === 0);
  }
  return column.log ? logTicks(low, high, most) : linearTicks(low, high, most);
}

function linearTicks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [[low, short(low)]];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999) || rough;
  const digits = Math.max(1, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / step + 1)) + 1);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high && found.length < 50; k += 1) {
    found.push([k * step, short(k * step, Math.min(digits, 12))]);
  }
  return found;
}

function logTicks(low, high, most) {
  const decades = high - low;
  if (decades < 0.5) {
    return linearTicks(10 ** low, 10 ** high, most).filter(([v]) => v > 0).map(([v, label]) => [Math.log10(v), label]);
  }
  const step = Math.max(1, Math.ceil(decades / Math.max(most, 1)));
  const steps = decades * 3 <= most ? [1, 2, 5] : decades * 2 <= most ? [1, 3] : [1];
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    if (power % step) continue;
    for (const k of steps) {
      const value = power + Math.log10(k);
      if (value >= low && value <= high) found.push([value, short(k * 10 ** power, 3)]);
    }
  }
  return found;
}

// The axis of the library for a range of a column.
function axisOf(column, [low, high], most, colours, more = {}) {
  const ticks = ticksOf(column, low, high, most);
  const values = ticks.map(([value]) => value);
  const labels = new Map(ticks.map(([value, label]) => [value, label]));
  return {
    type: "value", min: low, max: high, scale: true, animation: false,
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.soft } },
    axisTick: { show: true, customValues: values, lineStyle: { color: colours.soft } },
    axisLabel: {
      show: true, customValues: values, color: colours.soft, fontSize: 11, hideOverlap: true,
      formatter: (value) => clipped(nearestLabel(labels, value), more.labelWidth || 90), ...more.label,
    },
    splitLine: { show: !column.levels.length, lineStyle: { color: colours.grid } },
    ...more.axis,
  };
}

function nearestLabel(labels, value) {
  if (labels.has(value)) return labels.get(value);
  let best = "";
  let distance = Infinity;
  for (const [tick, label] of labels) {
    if (Math.abs(tick - value) < distance) [best, distance] = [label, Math.abs(tick - value)];
  }
  return best;
}

// Where a point of a category is drawn beside its middle: the same each time.
function jittered(column) {
  if (!column.levels.length) return column.drawn;
  return Float64Array.from(column.drawn, (value, k) => value + JITTER * (2 * (((k + 1) * 0.6180339887) % 1) - 1));
}
