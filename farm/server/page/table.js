"use strict";
// Tables that keep their rows from one status to the next: only what changed is written, so that
// a thousand rows cost little, and focus, selections and opened rows stay.

const ROWS = 200;
const COLLATOR = new Intl.Collator("en", { numeric: true });

function compared(a, b) {
  if (!present(a) || !present(b)) return present(b) - present(a);  // what is not known comes last
  return typeof a === "number" ? b - a : COLLATOR.compare(a, b);
}

// Put a text, {text, className, title} or an element into a cell.
function fill(cell, value) {
  if (value instanceof Node) {
    if (cell.firstChild !== value) cell.replaceChildren(value);
    return;
  }
  const { text, className = "", title = "" } = value !== null && typeof value === "object" ? value : { text: value };
  const sign = `${className}\n${title}\n${text}`;
  if (cell.sign === sign) return;
  cell.sign = sign;
  if (className || title) {
    const inside = element("span", text, className);
    if (title) inside.title = title;
    cell.replaceChildren(inside);
  } else cell.textContent = text ?? "";
}

// Make these the rows of a table's body, in this order, without moving more than needed.
function arrange(body, wanted) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const kept = new Set(wanted);
  for (const row of [...body.children]) if (!kept.has(row)) row.remove();
  let place = body.firstChild;
  for (const row of wanted) {
    if (row === place) place = place.nextSibling;
    else body.insertBefore(row, place);
  }
  if (focused && document.activeElement !== focused && body.contains(focused)) focused.focus({ preventScroll: true });
}

class Table {
  // columns: objects with title; value(row): what `fill` takes, or build(row): an element that is
  // kept, with refresh(element, row); sort(row): a number, largest first, or a text; total(rows):
  // of a group; when(rows): whether it is shown; className.
  // key(row): tells rows apart. empty: shown without rows. detail(row): an object with the element
  // that a row opens, and perhaps update(row) and close(). groups(rows): null, or objects with
  // name, rows, and open where a group is open at first.
  constructor(id, columns, { key, empty = "", detail, groups } = {}) {
    Object.assign(this, { columns, key, empty, detail, groups, rows: [], kept: new Map() });
    this.table = find(id);
    this.head = this.table.createTHead();
    this.body = this.table.createTBody();
    this.sorting = null;
    this.descending = false;
    this.toggled = new Set();  // groups that are not as they were at first
    this.whole = new Set();  // groups of which every row is shown
    this.shape = null;
  }

  update(rows) {
    this.rows = rows;
    this.shown = this.columns.filter((column) => !column.when || column.when(rows));
    const shape = this.shown.map((column) => column.title).join("\n");
    if (shape !== this.shape) this.shapeAnew(shape);
    const groups = this.groups ? this.groups(rows) : null;
    const wanted = [];
    this.seen = new Set();
    for (const group of this.ordered(groups) || [{ name: "", rows, open: true }]) this.addGroup(wanted, group, groups !== null);
    if (!rows.length && this.empty) wanted.push(this.note("", this.empty));
    for (const [key, line] of this.kept) {
      if (this.seen.has(key)) continue;
      this.close(line);
      this.kept.delete(key);
    }
    arrange(this.body, wanted);
  }

  shapeAnew(shape) {
    this.shape = shape;
    for (const line of this.kept.values()) this.close(line);
    this.kept.clear();
    const row = element("tr");
    for (const column of this.shown) {
      const cell = element("th", undefined, column.className);
      cell.scope = "col";
      if (column.sort) {
        const button = element("button", column.title, "sort");
        button.type = "button";
        button.addEventListener("click", () => this.sortBy(column));
        cell.append(button);
      } else cell.textContent = column.title;
      column.cell = cell;
      row.append(cell);
    }
    this.head.replaceChildren(row);
    this.showSorting();
  }

  // The first click puts the largest numbers first, the second the smallest, the third is the
  // order of the page.
  sortBy(column) {
    if (this.sorting !== column) [this.sorting, this.descending] = [column, false];
    else if (!this.descending) this.descending = true;
    else this.sorting = null;
    this.showSorting();
    this.update(this.rows);
  }

  showSorting() {
    for (const column of this.shown) {
      if (column !== this.sorting) column.cell.removeAttribute("aria-sort");
      else column.cell.setAttribute("aria-sort", this.isUpwards(column) ? "ascending" : "descending");
    }
  }

  isUpwards(column) {
    const example = this.rows.map(column.sort).find(present);
    return (typeof example === "number") === this.descending;
  }

  sorted(rows) {
    if (!this.sorting) return rows;
    const { sort } = this.sorting, sign = this.descending ? -1 : 1;
    const of = rows.map((row) => [sort(row), row]);
    of.sort(([a], [b]) => (present(a) && present(b) ? sign : 1) * compared(a, b));
    return of.map(([, row]) => row);
  }

  ordered(groups) {
    if (!groups || !this.sorting) return groups;
    const rank = (group) => { const [first] = this.sorted(group.rows); return this.sorting.sort(first); };
    const sign = this.descending ? -1 : 1;
    return groups.filter((group) => group.first)
      .concat(groups.filter((group) => !group.first).sort((a, b) => sign * compared(rank(a), rank(b))));
  }

  addGroup(wanted, group, headed) {
    const open = Boolean(group.open) !== this.toggled.has(group.name);
    if (headed) wanted.push(this.groupLine(group, open).row);
    if (!open) return;
    const sorted = this.sorted(group.rows);
    const most = this.whole.has(group.name) ? sorted.length : ROWS;
    for (const row of sorted.slice(0, most)) {
      const line = this.line(`row ${group.first ? "first " : ""}${this.key(row)}`, row);
      wanted.push(line.row);
      if (line.opened) {
        wanted.push(line.opened.row);
        line.opened.update?.(row);
      }
    }
    if (sorted.length > most) wanted.push(this.more(group.name, sorted.length));
  }

  keep(key, make) {
    this.seen.add(key);
    let line = this.kept.get(key);
    if (!line) {
      line = make();
      this.kept.set(key, line);
    }
    return line;
  }

  cells(row, heading) {
    return this.shown.map((column, i) => {
      const cell = element(i === 0 ? "th" : "td", undefined, column.className);
      if (i === 0) cell.scope = heading;
      row.append(cell);
      return cell;
    });
  }

  line(key, data) {
    const line = this.keep(key, () => {
      const made = { row: element("tr"), opened: null, built: [] };
      made.cells = this.cells(made.row, "row");
      if (this.detail) made.button = this.opener(made.cells[0], () => this.turn(made));
      made.built = this.shown.map((column) => column.build?.(data, () => made.data));
      return made;
    });
    line.data = data;
    this.shown.forEach((column, i) => {
      const built = line.built[i];
      if (built) column.refresh?.(built, data);
      const target = i === 0 && line.button ? line.button : line.cells[i];
      fill(target, built || column.value(data));
    });
    return line;
  }

  opener(cell, act) {
    const button = element("button", undefined, "opener");
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", act);
    cell.append(button);
    return button;
  }

  groupLine(group, open) {
    const line = this.keep(`group ${group.name}`, () => {
      const made = { row: element("tr", undefined, "group") };
      made.cells = this.cells(made.row, "row");
      made.button = this.opener(made.cells[0], () => {
        if (!this.toggled.delete(group.name)) this.toggled.add(group.name);
        this.update(this.rows);
      });
      return made;
    });
    line.button.setAttribute("aria-expanded", String(open));
    fill(line.button, `${group.name} (${number(group.rows.length)})`);
    this.shown.slice(1).forEach((column, i) => fill(line.cells[i + 1], column.total?.(group.rows) ?? ""));
    return line;
  }

  note(key, text) {
    const line = this.keep(`note ${key}`, () => {
      const row = element("tr"), cell = element("td", undefined, "soft");
      row.append(cell);
      return { row, cell };
    });
    line.cell.colSpan = this.shown.length;
    fill(line.cell, text);
    return line.row;
  }

  more(name, count) {
    const line = this.keep(`more ${name}`, () => {
      const row = element("tr"), cell = element("td"), button = element("button");
      button.type = "button";
      button.addEventListener("click", () => { this.whole.add(name); this.update(this.rows); });
      cell.append(button);
      row.append(cell);
      return { row, cell, button };
    });
    line.cell.colSpan = this.shown.length;
    fill(line.button, `Show all ${number(count)} rows`);
    return line.row;
  }

  turn(line) {
    if (line.opened) this.close(line);
    else {
      const row = element("tr", undefined, "detail"), cell = element("td");
      cell.colSpan = this.shown.length;
      const made = this.detail(line.data);
      cell.append(made.element);
      row.append(cell);
      line.opened = { ...made, row };
      line.button.setAttribute("aria-expanded", "true");
    }
    this.update(this.rows);
  }

  close(line) {
    if (!line.opened) return;
    line.opened.close?.();
    line.opened.row.remove();
    line.opened = null;
    line.button.setAttribute("aria-expanded", "false");
  }
}

// The section of a table: hidden while the status has no such rows.
function showRows(id, table, rows, { always = false } = {}) {
  const hidden = !rows || (!rows.length && !always);
  find(id).hidden = hidden;
  if (rows) table.update(rows);
}
