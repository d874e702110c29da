// Numbers and elements as text. Texts of the data enter the page by textContent alone.

// A number with all its digits, to be copied.
function full(value) {
  if (Number.isNaN(value)) return "none";
  if (!Number.isFinite(value)) return value > 0 ? "infinity" : "-infinity";
  const size = Math.abs(value);
  return size > 0 && size < 1e-4 ? value.toExponential() : String(value);
}

// A number in few characters, for axes and tips.
function short(value, digits = 4) {
  if (!Number.isFinite(value)) return full(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  const text = size >= 1e-3 && size < 10 ** Math.max(digits, 5)
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(Math.max(digits - 1, 0)).replace(/\.?0+e/, "e").replace("e+", "e");
  return text.replace(/-/g, "−");
}

function seconds(value) {
  if (!Number.isFinite(value)) return "none";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${short(value * 1e6, 3)} µs`;
  if (value < 1) return `${short(value * 1e3, 3)} ms`;
  if (value < 300) return `${short(value, 3)} s`;
  return value < 18000 ? `${short(value / 60, 3)} min` : `${short(value / 3600, 3)} h`;
}

// The unit in which a time of this length is shown, and its seconds.
function timeUnit(length) {
  if (length < 1) return ["ms", 1e-3];
  if (length < 300) return ["s", 1];
  return length < 18000 ? ["min", 60] : ["h", 3600];
}

function counted(count, noun) {
  return `${Math.round(count).toLocaleString("en")} ${noun}${Math.round(count) === 1 ? "" : "s"}`;
}

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, pressed) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", pressed);
  return made;
}

function option(value, text) {
  const made = element("option", text);
  made.value = value;
  return made;
}

const measuring = document.createElement("canvas").getContext("2d");

function widthOf(text) {
  measuring.font = "11px system-ui, sans-serif";
  return measuring.measureText(text).width;
}

function clipped(text, width) {
  if (widthOf(text) <= width) return text;
  let kept = text;
  while (kept.length > 1 && widthOf(`${kept}…`) > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
