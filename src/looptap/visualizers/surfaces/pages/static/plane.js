// Marks over axes. uPlot keeps axes, cursor and zoom; the marks are painted by paint.js.

const RAW_OPACITY_SHARE = 0.25; // of a line behind its moving average
const RULE_WORDS_PIXELS = 14; // height of a row of words over the plot, for commands
const CLIP_SECONDS = 0.25; // between two searches for outliers
const CLIP_SAMPLE = 20000; // numbers of a line in which outliers are searched for
const fitted = (title, most) => (title.length > most ? `${title.slice(0, most - 1)}…` : title);
// A label of at most 20 letters: of a layer the end says which it is.
const ended = (label) => (label.length > 20 ? `…${label.slice(-19)}` : label);
const ACROSS_PIXELS = 30, DATES_PIXELS = 40; // of the ticks below or above a plot, without their title
const TICK_PIXELS = 30; // between two numbers at an upright axis, at least
const planes = new Set(); // of the whole page: they share one cursor

// Dates at ticks, by the seconds between two: the form of each, and the line below where the year or the day is another.
const NUMBERS = Array.from({ length: 32 }, (_, k) => [1, 2, 2.5, 5].map((n) => n * 10 ** (k - 16))).flat(), WHOLE = NUMBERS.filter(Number.isInteger);
const DAY = "\n{YYYY}-{MM}-{DD}", DATE_FORMS = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", DAY, null, DAY, null, null, null, 1],
];

// The power of ten of a number, whole for the powers themselves.
const exponent = (value) => (Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9 ? Math.round(Math.log10(value)) : Math.log10(value));
// Whether a logarithmic axis spans so little that its numbers are those of a plain one.
const narrow = (low, high) => high < 4 * low;
// The places of numbers at a logarithmic axis: one to nine of each power of ten.
const places = (u, axis, low, high) => {
  if (narrow(low, high)) {
    const least = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(least));
    const step = unit * [1, 2, 2.5, 5, 10].find((number) => number * unit >= least), first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
  }
  const first = Math.floor(Math.log10(low)), count = Math.ceil(Math.log10(high)) - first + 1;
  const all = Array.from({ length: count }, (_, k) => [1, 2, 3, 4, 5, 6, 7, 8, 9].map((digit) => +`${digit}e${first + k}`));
  return all.flat().filter((value) => value >= low && value <= high);
};
// The numbers written there, null for the others: powers of ten, fewer where many have no room, and where there is much
// of it also numbers between.
const decades = (u, at, space, key) => {
  if (narrow(u.scales[key].min, u.scales[key].max)) return at;
  const wide = Math.abs(u.valToPos(10, key) - u.valToPos(1, key)), every = Math.ceil(space / wide);
  const digits = wide * Math.log10(10 / 9) >= space ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : wide * Math.log10(2) >= space ? [1, 2, 5] : [1];
  return at.map((value) => {
    const power = exponent(value), digit = Math.round(value / 10 ** Math.floor(power));
    return digits.includes(digit) && (every === 1 || power % every === 0) ? value : null;
  });
};
// Those of them with a line: no crowd between the powers of ten.
const lined = (u, at, space, key) => {
  const all = narrow(u.scales[key].min, u.scales[key].max);
  return decades(u, at, space, key).map((value) => (value !== null && (all || Number.isInteger(exponent(value))) ? value : null));
};
const counts = (columns) => columns.every((column) => column?.length && column.slice(-500).every((x) => Number.isInteger(x)));

class Plane {
  constructor(view, el) {
    this.view = view;
    this.store = view.store;
    this.el = el;
    this.reset(); // what was dragged over, of each x and of y
    planes.add(this);
  }
  destroy() {
    planes.delete(this);
    this.uplot?.destroy();
  }
  resize(width) {
    if (this.uplot && (this.uplot.width !== width || this.uplot.height !== this.view.height))
      this.uplot.setSize({ width, height: this.view.height });
  }
  get marks() {
    return this.panel.marks.filter((mark) => !mark.name || !this.view.hides(mark.name));
  }
  draw(panel, layout, width) {
    this.panel = panel;
    this.layout = layout;
    this.grid = panel.marks.find((mark) => mark.m === "grid");
    this.ink = this.view.theme.ink;
    [this.x, this.top] = [layout.x, this.grid ? null : layout.top];
    this.above = this.top ? ACROSS_PIXELS + (this.top.title ? 18 : 0) : 0;
    [this.y, this.right] = [layout.y, layout.right].map((axis) => axis && (this.grid ? axis : this.view.looked(axis)));
    this.rows = this.grid ? 0 : Math.min(this.top ? 1 : 2, layout.rules.length);
    const labels = [panel.labels, this.grid?.rows, this.grid?.columns];
    const shape = JSON.stringify([this.x, this.top, this.y, this.right, labels, this.rows, this.view.height]);
    if (this.shape !== shape) this.build(width);
    this.shape = shape;
    this.uplot.setData([[0, 1], [0, 1], [0, 1]], true);
    if (this.under) this.view.hover(this);
  }
  build(width) {
    const { panel, grid, x, top, y, right } = this;
    this.uplot?.destroy();
    const labelled = (labels, across) =>
      labels?.length && {
        space: across ? 10 + 7 * Math.min(20, Math.max(...labels.map((label) => label.length))) : 13,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
        values: (_, at) => at.map((i) => (Number.isInteger(i) ? ended(labels[i] ?? "") : "")),
      };
    const room = Math.max(8, Math.floor((this.view.height - 60) / 7)); // letters beside an axis
    const long = Math.floor(width / 9);
    const numbers = (axis) => (axis.time ? { values: DATE_FORMS } : { values: (_, at) => tickLabels(at, axis.log) });
    const of = (which, more) => ({ filter: (u, at) => which(u, at, more.space ?? TICK_PIXELS, more.scale ?? "x") });
    const axis = (about, more) => ({
      stroke: () => this.ink,
      grid: { stroke: "#8883", width: 1, show: !grid, ...(about.log && of(lined, more)) },
      ticks: { stroke: "#8886", width: 1, size: 6, ...(about.log && of(lined, more)) },
      label: about.title ? fitted(about.title, about === x || about === top ? long : room) : undefined,
      labelSize: 18,
      labelFont: "12px system-ui",
      size: 56,
      ...numbers(about),
      ...(about.log && { incrs: [Number.MAX_VALUE], splits: places, ...of(decades, more) }),
      ...more,
    });
    const scale = (about, side) => ({
      distr: about.log ? 3 : 1,
      dir: grid ? -1 : 1,
      range: () => this.limits(about, side),
    });
    const roomy = (rows) => (rows?.length ? { size: Math.min(150, 22 + 6.2 * Math.max(...rows.map((row) => Math.min(20, row.length)))) } : {});
    const ticked = ({ ticks }) => {
      if (!ticks?.length) return {};
      const named = ticks.filter(([, name]) => name), names = named.map(([, name]) => name); // none: no numbers either
      return { splits: () => named.map(([at]) => at), values: () => names.map(ended), ...roomy(names) };
    };
    const named = ({ ticks }) => {
      const most = Math.max(3, Math.floor(width / 7 / (ticks?.length + 1)));
      return ticks?.length ? { splits: () => ticks.map(([at]) => at), values: () => ticks.map(([, name]) => fitted(name, most)) } : {};
    };
    // Steps and epochs are whole; so are the numbers at their ticks.
    const steps = (u, _, low, high) => (high - low > 2 && counts(this.marks.map(({ x: column }) => column && this.view.store.column(column))) ? WHOLE : NUMBERS);
    const axes = [
      axis(x, { size: x.time ? DATES_PIXELS : ACROSS_PIXELS, space: 80, ...(!(x.time || x.log) && { incrs: steps }), ...named(x), ...labelled(grid ? grid.columns : panel.labels, true) }),
      axis(y, { scale: "y", ...ticked(y), ...labelled(grid?.rows), ...roomy(grid?.rows) }),
    ];
    const scales = {
      x: { time: x.time, distr: x.log ? 3 : 1, range: () => this.reach("bottom") },
      y: scale(y, "left"),
    };
    if (right) {
      scales.right = scale(right, "right");
      axes.push(axis(right, { scale: "right", side: 1, grid: { show: false } }));
    }
    if (top) {
      scales.top = { time: top.time, distr: top.log ? 3 : 1, ori: 0, range: () => this.reach("top") };
      axes.push(axis(top, { scale: "top", side: 0, size: ACROSS_PIXELS, space: 80, grid: { show: false } }));
    }
    const plain = { scale: "y", paths: () => null, points: { show: false } };
    const options = {
      width,
      height: this.view.height,
      padding: [this.rows ? 4 + RULE_WORDS_PIXELS * this.rows : 8, right ? 0 : x.time ? 30 : 20, 0, 0],
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"), // the kernel has made it local time
      cursor: { y: false, drag: { x: true, y: true, uni: 24, setScale: false }, points: { show: false } },
      scales,
      axes,
      series: [{}, plain, { ...plain, scale: right ? "right" : "y" }],
      hooks: {
        draw: [(u) => this.paint(u)],
        setCursor: [() => this.pointed()],
        setSelect: [(u) => this.select(u)],
        ready: [(u) => u.over.addEventListener("dblclick", () => this.select(null))],
      },
    };
    this.el.textContent = "";
    this.uplot = new uPlot(options, [[0, 1], [0, 1], [0, 1]], this.el);
    this.tip = new Tip(this.uplot.over);
  }
  // Zoom into what was dragged over, or back out.
  select(u) {
    if (u) {
      const { left, top, width, height } = u.select;
      if (width < 4 && height < 4) return;
      if (width >= 4)
        for (const [across, key] of [["bottom", "x"], ...(this.top ? [["top", "top"]] : [])])
          this.zoom[across] = [u.posToVal(left, key), u.posToVal(left + width, key)];
      if (height >= 4 && height < u.over.clientHeight - 4)
        this.rise = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    } else this.reset();
    this.view.draw();
  }
  reset() {
    this.zoom = {};
    this.rise = null;
  }
  // The key of the x scale that a mark stands over.
  over(mark) {
    return mark.across === "top" && this.top ? "top" : "x";
  }
  // The cursor has moved: it is at the same x on all charts over the same axis.
  pointed() {
    if (!this.tip) return; // uPlot is still being made
    this.view.hover(this);
    for (const other of planes) {
      if (other === this || !other.uplot || other.layout?.x.title !== this.x.title || !other.view.visible) continue;
      const at = this.cursor === null ? -10 : other.uplot.valToPos(this.cursor, "x");
      const inside = at >= 0 && at <= other.uplot.over.clientWidth;
      other.uplot.setCursor({ left: inside ? at : -10, top: inside ? 0 : -10 }, false);
      other.view.values();
    }
  }
  // What is seen of x: what was zoomed into, else what the job asks for, else all.
  reach(across) {
    const x = (across === "top" && this.top) || this.x, marks = this.marks.filter((mark) => (mark.across ?? "bottom") === across);
    if (this.zoom[across]) return this.zoom[across];
    let low = Infinity, high = -Infinity;
    for (const mark of marks) {
      const [from, to] = LIMITS[mark.m](this.store, mark, null, x.log);
      low = Math.min(low, from);
      high = Math.max(high, to);
    }
    const room = !x.log && marks.some((mark) => mark.m === "points") ? 0.03 * (high - low) : 0;
    low = x.low ?? low - room;
    high = x.high ?? high + room;
    return low < high ? [low, high] : low === high ? [low - 0.5, high + 0.5] : x.log ? [1, 10] : [0, 1];
  }
  limits(about, side) {
    if (this.rise && side === "left") return this.rise;
    const marks = this.marks.filter((mark) => (mark.side ?? "left") === side);
    const seen = { x: this.reach("bottom"), top: this.top && this.reach("top") };
    let low = Infinity, high = -Infinity;
    for (const mark of marks) {
      const [from, to] = LIMITS[mark.m](this.store, mark, seen[this.over(mark)], about.log);
      if (!(Number.isFinite(from) && Number.isFinite(to))) continue; // no finite number: it has no part in the scale
      low = Math.min(low, from, to);
      high = Math.max(high, from, to);
    }
    if (this.view.look("clip") && !this.grid) [low, high] = this.clipped(about, side) ?? [low, high];
    if (!(low <= high)) [low, high] = about.log ? [1, 10] : [0, 1];
    if (about.log) [low, high] = [low / 1.2, high * 1.2];
    else if (!this.grid) {
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      const bars = marks.some((mark) => mark.m === "bars");
      [low, high] = [low >= 0 && (bars || low < room) ? 0 : low - room, high + room];
    }
    low = about.low ?? low;
    high = about.high ?? high;
    return low < high ? [low, high] : [low, low + (Math.abs(low) || 1)];
  }
  // The limits without outliers, searched for now and then.
  clipped(about, side) {
    const now = performance.now(), key = `${side} ${about.log}`;
    this.fences ??= new Map();
    const known = this.fences.get(key);
    if (known && now - known.at < 1000 * CLIP_SECONDS) return known.ends;
    const numbers = [];
    for (const mark of this.marks) {
      if ((mark.side ?? "left") !== side || !["line", "points"].includes(mark.m)) continue;
      const ys = this.store.column(mark.y), step = Math.max(1, Math.floor(ys.length / CLIP_SAMPLE));
      for (let i = 0; i < ys.length; i += step) if (!about.log || ys[i] > 0) numbers.push(about.log ? Math.log10(ys[i]) : ys[i]);
    }
    const found = inliers(numbers), ends = found && (about.log ? found.map((end) => 10 ** end) : found);
    this.fences.set(key, { at: now, ends });
    return ends;
  }
  // What a canvas needs to paint marks: how numbers become pixels, and the colours of the page.
  painter(ctx, u, ratio) {
    const { store, view } = this, { bbox } = u;
    const map = (scale, log) => {
      const { min, max } = u.scales[scale], f = log ? Math.log10 : (v) => v;
      const at = u.valToPos(min, scale, true), slope = (u.valToPos(max, scale, true) - at) / (f(max) - f(min));
      return (value) => at + (f(value) - f(min)) * slope;
    };
    const X = map("x", this.x.log), ends = { x: [X, u.scales.x, this.x.log] }, sides = { left: [map("y", this.y.log), u.scales.y, this.y.log] };
    if (this.top) ends.top = [map("top", this.top.log), u.scales.top, this.top.log];
    if (this.right) sides.right = [map("right", this.right.log), u.scales.right, this.right.log];
    const at = (mark) => {
      const [across, reach, logx] = ends[this.over(mark)];
      const [Y, scale, log] = sides[mark.side ?? "left"] ?? sides.left;
      return {
        X: across, Y, ratio, log, ink: this.ink, ground: view.theme.ground, color: view.theme.of(mark.color), x0: reach.min, x1: reach.max,
        y0: scale.min, width: bbox.width, top: bbox.top, bottom: bbox.top + bbox.height, logx,
      };
    };
    return { X, at, one: (mark) => {
      const weight = this.weight(mark), how = at(mark);
      ctx.save();
      ctx.globalAlpha = (mark.opacity ?? 1) * (weight ? RAW_OPACITY_SHARE : 1);
      PAINT[mark.m](ctx, store, mark, how);
      if (weight) {
        ctx.globalAlpha = mark.opacity ?? 1;
        PAINT.line(ctx, store, mark, { ...how, ys: store.smoothed(mark.y, weight) });
      }
      ctx.restore();
    } };
  }
  // The smoothing of a mark; 0 for what is not a line that grows.
  weight(mark) {
    const smooths = mark.m === "line" && mark.filled === null && !mark.notes.length && this.layout.smooth !== null;
    return smooths ? this.view.look("smooth") : 0;
  }
  paint(u, ctx = u.ctx, ratio = devicePixelRatio) {
    const { bbox } = u, { X, one } = this.painter(ctx, u, ratio);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.textBaseline = "alphabetic"; // uPlot leaves its own
    for (const bars of [true, false]) // lines are drawn over bars
      for (const mark of this.marks) if ((mark.m === "bars") === bars) one(mark);
    ctx.restore();
    if (this.rows) this.rules(ctx, u, X, ratio);
  }
  // A dashed line for each command; its words stand over the plot, where no curve is. The last first: where there is no
  // room for the words of all, the earlier rules have none.
  rules(ctx, u, X, ratio) {
    const { bbox } = u, end = bbox.left + bbox.width, gap = 3 * ratio;
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = this.ink;
    ctx.lineWidth = ratio;
    ctx.globalAlpha = 0.7;
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    const taken = Array.from({ length: this.rows }, () => []); // the ends of the words in each row
    for (const [x, text] of [...this.layout.rules].reverse()) {
      const px = Math.round(X(x)), wide = ctx.measureText(text).width;
      if (!(px >= bbox.left && px <= end)) continue;
      ctx.setLineDash([gap, gap]);
      ctx.beginPath();
      ctx.moveTo(px, bbox.top);
      ctx.lineTo(px, bbox.top + bbox.height);
      ctx.stroke();
      const left = Math.max(bbox.left, Math.min(px, end - wide));
      const right = left + wide + 2 * gap, row = taken.findIndex((words) => words.every(([from, to]) => right < from || left > to));
      if (row < 0) continue;
      ctx.fillText(text, left, bbox.top - (this.above + 4 + RULE_WORDS_PIXELS * row) * ratio);
      taken[row].push([left, right]);
    }
    ctx.restore();
  }
  // The x under the cursor, null without one.
  get cursor() {
    const left = this.uplot?.cursor.left ?? -1;
    return left >= 0 ? this.uplot.posToVal(left, "x") : null;
  }
  // The same on the axis that a mark stands over.
  xAt(mark) {
    const left = this.uplot?.cursor.left ?? -1;
    return left >= 0 ? this.uplot.posToVal(left, this.over(mark)) : null;
  }
  get canvas() {
    return this.uplot?.ctx.canvas;
  }
}
