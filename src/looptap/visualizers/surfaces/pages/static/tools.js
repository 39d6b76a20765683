// The buttons of a chart: its scales, smoothing and limits, and what can be taken away from it.

const X_NAMES = { "": "as the values say", step: "step", epoch: "epoch", event: "event", time: "seconds", wall: "time of day" };

const KIND_NAMES = { line: "lines", layers: "heat map", flow: "bars" };

class Tools {
  constructor(view, el) {
    this.view = view;
    const { store } = view;
    this.log = this.button(el, "log", "Logarithmic axis (l)", () => view.set("log", !view.log));
    this.kind = this.button(el, "", "The same values as another chart (v)", () => this.turn());
    this.menu = this.button(el, "⋯", "Smoothing, x axis, limits, files", () => this.open(this.sheet.hidden));
    this.hold = this.button(el, "Pause", "Hold the picture; what arrives meanwhile is shown when it goes on", () =>
      store.pause(!store.paused),
    );
    this.sheet = make(view.el, "div", "sheet");
    this.sheet.hidden = true;
    this.away = (event) => !view.el.contains(event.target) && this.open(false);
    this.smooth = this.field("smoothing", "range", (value) => view.set("smooth", +value), { min: 0, max: 0.99, step: 0.01 });
    this.weight = make(this.smooth.parentNode, "span");
    this.x = this.choice("x axis", (x) => {
      view.initial ??= store.layout.over;
      view.options.x = x;
      store.send({ t: "x", x });
    });
    this.clip = this.field("without outliers (c)", "checkbox", () => view.set("clip", this.clip.checked));
    const ends = this.row("y from, to");
    [this.low, this.high] = ["low", "high"].map((end) => {
      const input = make(ends, "input", "end");
      input.placeholder = "auto";
      input.onchange = () => view.set(end, input.value.trim() === "" || !Number.isFinite(+input.value) ? undefined : +input.value);
      return input;
    });
    this.sort = this.choice("names sorted by", (by) => {
      view.options.sort = by;
      view.tell();
    });
    this.fill(this.sort, { "": "order", name: "name", value: "newest value" }, "");
    const files = make(this.sheet, "div", "row");
    this.button(files, "Reset", "Everything as it came (r)", () => view.reset());
    this.button(files, "PNG", "Save the picture", () => savePng(view));
    this.button(files, "SVG", "Save the picture, to be scaled", () => save(view, "svg", svgOf(view), "image/svg+xml"));
    this.button(files, "CSV", "Save the numbers", () => save(view, "csv", csvOf(view), "text/csv"));
    this.query = this.button(files, "Query", "Copy the query", () => this.copy());
  }
  button(parent, text, title, press) {
    const node = make(parent, "button", "", text);
    node.type = "button";
    node.title = title;
    node.onclick = press;
    return node;
  }
  row(label) {
    const row = make(this.sheet, "label", "row");
    make(row, "span", "label", label);
    return row;
  }
  field(label, type, change, how = {}) {
    const input = make(this.row(label), "input");
    Object.assign(input, { type, ...how });
    input.oninput = () => change(input.value);
    return input;
  }
  choice(label, change) {
    const select = make(this.row(label), "select");
    select.onchange = () => change(select.value);
    return select;
  }
  fill(select, options, value) {
    const keys = JSON.stringify(options);
    if (select.keys !== keys) {
      select.textContent = "";
      for (const [key, text] of Object.entries(options)) Object.assign(make(select, "option", "", text), { value: key });
      select.keys = keys;
    }
    if (document.activeElement !== select) select.value = value;
  }
  open(shown) {
    this.sheet.hidden = !shown;
    this.menu.classList.toggle("on", shown);
    if (shown) document.addEventListener("pointerdown", this.away);
    else document.removeEventListener("pointerdown", this.away);
    this.show();
  }
  // What the buttons say, of what is looked at.
  show() {
    const { view } = this, { store } = view, { layout, paused } = store;
    this.hold.hidden = store.still;
    this.hold.textContent = paused ? "Resume" : "Pause";
    this.hold.classList.toggle("on", paused);
    const plane = layout?.panels.some(({ kind }) => kind === "plane");
    this.log.hidden = !plane || layout.y.ticks?.length > 0; // heights with names are places
    this.menu.hidden = !layout;
    const kinds = layout?.kinds ?? [];
    this.kind.hidden = store.still || kinds.length < 2;
    this.kind.textContent = kinds.length > 1 ? `as ${KIND_NAMES[kinds[1]] ?? kinds[1]}` : "";
    if (!layout) return;
    this.log.classList.toggle("on", view.log);
    if (this.sheet.hidden) return;
    const smooth = view.look("smooth"), xs = layout.xs ?? [];
    for (const [node, shown] of [
      [this.smooth, plane && smooth !== null], [this.x, xs.length && (!store.still || store.turns)], [this.clip, plane], [this.low, plane],
      [this.sort, view.legend.names.size > 1],
    ])
      node.parentNode.hidden = !shown;
    this.smooth.value = smooth ?? 0;
    this.weight.textContent = smooth ? smooth.toFixed(2) : "off";
    this.clip.checked = !!view.look("clip");
    for (const end of ["low", "high"]) if (document.activeElement !== this[end]) this[end].value = view.options[end] ?? "";
    this.fill(this.x, Object.fromEntries(["", ...xs].map((x) => [x, X_NAMES[x] ?? x])), layout.over ?? "");
    this.fill(this.sort, { "": "order", name: "name", value: "newest value" }, view.options.sort ?? "");
    this.query.hidden = !layout.queries?.length;
  }
  // The next of the charts that show these values.
  turn() {
    const [, next] = this.view.store.layout?.kinds ?? [];
    if (next) this.view.store.send({ t: "kind", kind: next });
  }
  copy() {
    const text = this.view.store.layout.queries.join("\n");
    const said = (what) => {
      this.query.textContent = what;
      setTimeout(() => (this.query.textContent = "Query"), 1500);
    };
    const byHand = () => {
      const box = make(this.sheet, "textarea", "", text); // a page that is not secure has no clipboard
      box.select();
      said(document.execCommand("copy") ? "copied" : "not copied");
      box.remove();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => said("copied"), byHand);
    else byHand();
  }
}

// ------------------------------------------------------------ files

const save = (view, kind, content, type) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = `${(view.store.layout.title || "chart").replace(/[^\w-]+/g, "-").slice(0, 80)}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

// Title and names over a picture that is saved: what the page shows above it.
const heading = (view, ctx, ratio) => {
  const { theme, store, legend } = view, marks = store.layout.panels.flatMap((panel) => panel.marks);
  ctx.font = `${12 * ratio}px system-ui`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  let left = 8 * ratio;
  const names = [...legend.names.keys()].filter((name) => !view.hides(name));
  for (const name of [...(view.title.hidden ? [] : [store.layout.title]), ...names]) {
    const mark = marks.find((one) => one.name === name && one.color);
    ctx.fillStyle = mark ? theme.of(mark.color) : theme.ink;
    ctx.fillText(name, left, 15 * ratio);
    left += ctx.measureText(name).width + 12 * ratio;
  }
};

const savePng = (view) => {
  const sources = view.panels.map((panel) => panel.canvas).filter(Boolean);
  if (!sources.length) return;
  const ratio = devicePixelRatio, head = 22 * ratio, canvas = document.createElement("canvas");
  canvas.width = sources.reduce((sum, source) => sum + source.width, 0);
  canvas.height = Math.max(...sources.map((source) => source.height)) + head;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = view.theme.ground;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  let left = 0;
  for (const source of sources) {
    ctx.drawImage(source, left, head);
    left += source.width;
  }
  heading(view, ctx, ratio);
  canvas.toBlob((blob) => save(view, "png", blob));
};

const FORMULA = /^(?:[\t\r\n]|[\s\ufeff\u200b]*[=+\-@＝＋－＠])/; // the beginning of text that a spreadsheet computes
const plain = (cell) => (typeof cell === "string" && FORMULA.test(cell) && Number.isNaN(+cell) ? `'${cell}` : String(cell));
const quoted = (cell) => (/[",\n\r]/.test(cell) ? `"${plain(cell).replaceAll('"', '""')}"` : plain(cell));
const csv = (rows) => rows.map((row) => row.map((cell) => (cell !== cell || cell === undefined ? "" : quoted(cell))).join()).join("\r\n") + "\r\n";

// The numbers of marks over one axis.
const tableOf = (marks, title, column, keys) => {
  const table = new Map(), names = [];
  const add = (name, xs, ys) => {
    const place = names.push(name);
    xs.forEach((x, k) => {
      if (!table.has(x)) table.set(x, [x]);
      table.get(x)[place] = ys[k];
    });
  };
  for (const mark of marks) {
    if (mark.m === "bars" && mark.edges === null) add(mark.name, mark.labels, column(mark.heights));
    else if (mark.m === "bars") add(mark.name, [...column(mark.left)], column(mark.heights));
    else if (mark.m === "band") for (const end of ["low", "high"]) add(`${mark.name} ${end}`, column(mark.x), column(mark[end]));
    else if (mark.x && mark.name) for (const key of keys ?? ["y"]) add(keys ? `${mark.name} ${key}` : mark.name, column(mark.x), column(mark[key]));
  }
  const rows = [...table.values()];
  if (rows.every(([x]) => typeof x === "number")) rows.sort(([one], [other]) => one - other);
  return csv([[title, ...names], ...rows.map((row) => Array.from({ length: names.length + 1 }, (_, k) => row[k]))]);
};

// The numbers of a chart: a row for each x, a column for each name; what is over another x has a table of its own.
const csvOf = ({ store, panels }) =>
  store.layout.panels.map((panel, i) => {
    const [first] = panel.marks, column = (key) => store.column(key);
    if (panel.kind === "table") return csv([first.titles, ...first.rows]);
    if (panel.kind === "text") return csv(first.lines.map((line) => [line]));
    if (panel.kind === "pie") return csv([...column(first.shares)].map((share, k) => [first.labels[k], share]));
    if (panel.kind === "images") return csv([["image"], ...first.captions.map((caption) => [caption])]);
    if (panel.kind === "grid") {
      const [rows, columns] = first.shape, cells = column(first.cells);
      const names = first.columns.length ? first.columns : [...Array(columns).keys()];
      return csv([["", ...names], ...[...Array(rows).keys()].map((r) => [first.rows[r] ?? r, ...cells.subarray(r * columns, (r + 1) * columns)])]);
    }
    const ridge = new Map(store.layout.y?.ticks?.map(([at, name]) => [at, name]));
    const named = (mark) => (ridge.has(mark.filled) ? { ...mark, name: ridge.get(mark.filled) } : mark);
    const keys = panel.kind === "space" ? ["y", "z"] : null, { x, top } = store.layout;
    const tables = [["bottom", x], ["top", top]].map(([across, axis]) => {
      const marks = panel.marks.filter((mark) => (mark.across ?? "bottom") === across);
      return marks.length ? tableOf(marks.map(named), axis?.title || "x", column, keys) : "";
    });
    return tables.filter(Boolean).join("\r\n");
  }).join("\r\n");
