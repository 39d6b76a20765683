// The box beside the pointer: all values at its x, or the sample of the nearest point.

const TIP_LINES = 12; // values in the box, those nearest to the pointer
const POINT_PIXELS = 14; // from the pointer to a point that it means

// The index of the number nearest to `x`, of numbers that rise; -1 without numbers.
const nearest = (xs, x) => {
  const i = Math.min(xs.length - 1, lower(xs, x));
  return i > 0 && x - xs[i - 1] < xs[i] - x ? i - 1 : i;
};

class Tip {
  constructor(over) {
    this.el = make(over, "div", "tip");
    this.el.hidden = true;
  }
  show(plane) {
    const { cursor, over } = plane.uplot, { view, store } = plane;
    const x = plane.under ? plane.cursor : null;
    const lines = x === null || plane.grid ? [] : [...this.points(plane), ...this.lines(plane, x)];
    const cell = plane.grid && plane.under ? this.cell(plane) : null;
    this.el.hidden = !lines.length && !cell;
    if (this.el.hidden) return;
    this.el.textContent = "";
    const at = lines.find((one) => one.x !== undefined)?.x ?? x; // that of the values
    make(this.el, "div", "where", cell ?? `${plane.x.title || "x"} ${plane.x.time ? dated(at) : short(at)}`);
    for (const { color, name, text, image } of lines) {
      const row = make(this.el, "div");
      if (color) make(row, "i").style.background = color;
      make(row, "span", "", name);
      make(row, "b", "", text);
      if (image) row.append(image);
    }
    const right = cursor.left > over.clientWidth / 2;
    this.el.style.left = right ? "" : `${cursor.left + 14}px`;
    this.el.style.right = right ? `${over.clientWidth - cursor.left + 14}px` : "";
    this.el.style.top = `${Math.max(0, Math.min(cursor.top, over.clientHeight - this.el.offsetHeight))}px`;
  }
  lines(plane, x) {
    const { store, view, uplot } = plane, found = [], told = new Set();
    for (const mark of plane.marks) {
      if (!mark.name || told.has(mark.name) || !["line", "band", "bars"].includes(mark.m) || (mark.filled ?? null) !== null) continue;
      told.add(mark.name);
      const color = view.theme.of(mark.color);
      const here = plane.xAt(mark);
      if (mark.m === "bars") {
        const lefts = store.column(mark.left), rights = store.column(mark.right);
        const i = lefts.findIndex((left, k) => left <= here && here <= rights[k]);
        if (i < 0) continue;
        const label = mark.edges === null ? mark.labels[i] : `${short(lefts[i], 3)} to ${short(rights[i], 3)}`;
        found.push({ color, name: `${mark.name} ${label}`, text: short(store.column(mark.heights)[i]), y: NaN });
        continue;
      }
      const xs = store.column(mark.x);
      if (!xs.length || !store.sorted(mark.x)) continue;
      const i = nearest(xs, here), above = plane.over(mark) === "top";
      const where = above ? ` at ${plane.top.title} ${plane.top.time ? dated(xs[i]) : short(xs[i])}` : "", at = above ? {} : { x: xs[i] };
      if (mark.m === "band") {
        const [low, high] = [mark.low, mark.high].map((key) => short(store.column(key)[i]));
        found.push({ color, name: mark.name, text: `${low} … ${high}${where}`, ...at, y: NaN });
        continue;
      }
      const weight = plane.weight(mark), y = (weight ? store.smoothed(mark.y, weight) : store.column(mark.y))[i];
      const raw = weight ? ` (${short(store.column(mark.y)[i])})` : "";
      found.push({ color, name: mark.name, text: plane.y.ticks?.length ? "" : short(y) + raw + where, ...at, y });
    }
    if (found.length > TIP_LINES) {
      const at = uplot.posToVal(uplot.cursor.top, "y"), far = ({ y }) => (Number.isNaN(y) ? 0 : Math.abs(y - at));
      const more = found.length - TIP_LINES;
      found.sort((one, other) => far(one) - far(other)).splice(TIP_LINES);
      found.push({ name: `and ${more} more`, text: "" });
    }
    return found;
  }
  // The point nearest to the pointer, with what the job says of it.
  points(plane) {
    const { store, view, uplot } = plane, { left, top } = uplot.cursor;
    let best = null, least = POINT_PIXELS ** 2;
    for (const mark of plane.marks) {
      if (mark.m !== "points") continue;
      const xs = store.column(mark.x), ys = store.column(mark.y), scale = mark.side === "right" && plane.right ? "right" : "y";
      for (let i = 0; i < xs.length; i++) {
        const away = (uplot.valToPos(xs[i], plane.over(mark)) - left) ** 2 + (uplot.valToPos(ys[i], scale) - top) ** 2;
        if (away < least) [best, least] = [{ mark, i, x: xs[i], y: ys[i] }, away];
      }
    }
    if (!best) return [];
    const { mark, i, x, y } = best, color = view.theme.of(mark.color);
    const value = mark.values === null ? "" : ` · ${short(store.column(mark.values)[i])}`;
    const label = mark.labels?.[i] ?? mark.name ?? "";
    const image = mark.images?.[i] ? pictured(store.column(`${mark.key}.image${i}`), mark.images[i]) : null;
    return [{ color, name: label || `point ${i}`, text: `(${short(x)}, ${short(y)})${value}`, image }];
  }
  // Row, column and number of the cell of a matrix.
  cell(plane) {
    const { grid, store, uplot } = plane, [rows, columns] = grid.shape;
    const i = Math.round(uplot.posToVal(uplot.cursor.top, "y")), j = Math.round(uplot.posToVal(uplot.cursor.left, "x"));
    if (!(i >= 0 && i < rows && j >= 0 && j < columns)) return null;
    const about = [plane.y.title || "row", grid.rows[i] ?? i, plane.x.title || "column", grid.columns[j] ?? j].join(" ");
    return `${about}: ${short(store.column(grid.cells)[i * columns + j])}`;
  }
}

const dated = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
