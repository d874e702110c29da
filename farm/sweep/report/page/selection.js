// What is selected: one point, whose row the page shows, and a set of points, drawn in all figures.

class Selection {
  constructor(data) {
    this.data = data;
    this.one = null;
    this.set = null;
    this.followers = [];
  }

  follow(changed) {
    this.followers.push(changed);
  }

  tell() {
    for (const changed of this.followers) changed(this);
  }

  point(place) {
    this.one = place;
    this.tell();
  }

  // places: of several points; with one of them the row is that one's.
  points(places) {
    this.set = places.length ? Int32Array.from(places) : null;
    if (places.length) this.one = places.includes(this.one) ? this.one : places[0];
    this.tell();
  }

  clear() {
    this.set = null;
    this.one = null;
    this.tell();
  }

  // Moves to another point: of the set if there is one, otherwise of all, in the order given.
  step(by, order = this.set || this.data.everywhere) {
    if (!order.length) return;
    const at = order.indexOf(this.one);
    const next = at < 0 ? (by > 0 ? 0 : order.length - 1) : Math.min(Math.max(at + by, 0), order.length - 1);
    this.point(order[next]);
  }
}

const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

function followKeys(selection) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    if (event.key === "Escape") selection.clear();
    const inFigure = event.target.closest(".canvas");
    const by = STEPS[event.key];
    if (by === undefined || (Math.abs(by) !== 1 && !inFigure)) return;
    event.preventDefault();
    selection.step(by, inFigure && inFigure.figure && !selection.set ? inFigure.figure.order() : undefined);
  });
}
