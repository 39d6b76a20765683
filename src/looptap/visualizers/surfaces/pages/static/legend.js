// The names over a plot: one line, in which a click shows or hides a line, a double click shows it alone.

const DOUBLE_CLICK_MILLISECONDS = 350;

class Legend {
  constructor(view, el) {
    this.view = view;
    this.row = make(el, "span", "legend");
    this.more = view.tools.button(el, "", "Show all names", () => {
      this.open = !this.open;
      this.fit();
    });
    this.more.hidden = true;
    this.scale = make(el, "span", "scale");
    this.names = new Map(); // the element for the value, by name
  }
  show(layout) {
    const { view } = this, colors = new Map();
    for (const mark of layout.panels.flatMap((panel) => panel.marks))
      if (mark.name && mark.color && !colors.has(mark.name)) colors.set(mark.name, mark);
    this.row.textContent = "";
    this.names = new Map();
    for (const [name, mark] of this.sorted([...colors])) {
      const entry = make(this.row, "span", view.hides(name) ? "off" : "");
      entry.title = `${name}: click to hide or show, double click to show it alone`;
      const line = make(entry, "i", mark.dash && mark.dash !== "solid" ? "dashed" : "");
      line.style.color = view.theme.of(mark.color);
      entry.append(name);
      this.names.set(name, make(entry, "b"));
      entry.onclick = (event) => this.clicked(name, event.shiftKey || event.altKey);
    }
    this.shade(layout);
    this.written = -1; // the new entries show no values yet
    this.fit();
  }
  sorted(marks) {
    const { store, options } = this.view, newest = ([, mark]) => store.column(mark.y ?? mark.heights).at(-1) ?? NaN;
    if (options.sort === "name") marks.sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
    if (options.sort === "value") marks.sort((one, other) => (newest(other) || 0) - (newest(one) || 0));
    return marks;
  }
  // The entries are made again by each click: the browser would see no double one.
  clicked(name, alone) {
    const { view, last } = this, now = performance.now();
    const again = last?.name === name && now - last.at < DOUBLE_CLICK_MILLISECONDS;
    this.last = { name, at: again ? -Infinity : now, only: view.only };
    if (again || alone) this.isolate(name, again ? last.only : view.only);
    else this.toggle(name);
  }
  toggle(name) {
    const { view } = this;
    if (view.only) {
      for (const other of this.names.keys()) if (other !== view.only) view.hidden.add(other);
      view.only = null;
    }
    if (!view.hidden.delete(name)) view.hidden.add(name);
    this.drawn();
  }
  isolate(name, before) {
    const { view } = this;
    view.only = before === name ? null : name;
    view.hidden.clear();
    this.drawn();
  }
  drawn() {
    this.view.tell();
    this.view.draw();
  }
  // One line of names, all of them on request, never more than a quarter of the plot.
  fit() {
    const { row, more, open, view } = this;
    row.classList.toggle("open", !!open);
    row.style.maxHeight = open ? `${LEGEND_SHARE * view.height}px` : "";
    const below = () => [...row.children].filter((entry) => entry.offsetTop > row.offsetTop + 12).length;
    more.hidden = !open;
    if (!open && below()) more.hidden = false; // which takes room itself
    more.textContent = open ? "less" : `+${below()}`;
  }
  // The scale of a matrix: its smallest and largest number, and the colours between them.
  shade(layout) {
    const mark = layout.panels.flatMap((panel) => panel.marks).find((one) => one.m === "grid");
    this.scale.hidden = !mark || mark.written;
    if (this.scale.hidden) return;
    const [low, high] = extent(this.view.store.column(mark.cells));
    const stops = stopsOf(mark).map((color) => `rgb(${color})`).join();
    this.scale.textContent = "";
    make(this.scale, "span", "", short(low, 3));
    make(this.scale, "i").style.background = `linear-gradient(to right, ${stops})`;
    make(this.scale, "span", "", short(high, 3));
  }
  count(plane) {
    const { store } = this.view, told = new Set();
    let written = 0;
    if (plane.y.ticks?.length) return; // heights on axes with names are places, not values
    for (const mark of plane.panel.marks) {
      const node = this.names.get(mark.name);
      if (mark.m !== "line" || mark.filled !== null || !node || told.has(mark.name)) continue;
      told.add(mark.name);
      const x = plane.xAt(mark);
      const xs = store.column(mark.x), ys = store.column(mark.y);
      const i = x === null || !store.sorted(mark.x) ? xs.length - 1 : nearest(xs, x);
      const text = i < 0 ? "" : short(ys[i]);
      if (node.textContent !== text) node.textContent = text;
      written += text.length;
    }
    if (written !== this.written) this.fit(); // longer numbers may move names out of the line
    this.written = written;
  }
}
