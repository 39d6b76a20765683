// Marks over axes. uPlot keeps axes, cursor and zoom; the marks are painted by paint.js.

class Plane {
  constructor(view, el) {
    this.view = view;
    this.store = view.store;
    this.el = el;
    this.zoom = null;
  }
  destroy() {
    this.uplot?.destroy();
  }
  resize(width) {
    if (this.uplot && this.uplot.width !== width) this.uplot.setSize({ width, height: this.view.height });
  }
  get marks() {
    return this.panel.marks.filter((mark) => !this.view.hidden.has(mark.name) || !mark.name);
  }
  draw(panel, layout, width) {
    this.panel = panel;
    this.layout = layout;
    this.grid = panel.marks.find((mark) => mark.m === "grid");
    this.ink = this.view.theme.ink;
    const shape = JSON.stringify([layout.x, layout.y, layout.right, panel.labels, this.grid?.rows, this.grid?.columns]);
    if (this.shape !== shape) this.build(width);
    this.shape = shape;
    this.uplot.setData([[0, 1], [0, 1], [0, 1]], true);
  }
  build(width) {
    const { layout, panel, grid } = this;
    this.uplot?.destroy();
    const labelled = (labels) =>
      labels?.length && {
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
        values: (_, at) => at.map((i) => (Number.isInteger(i) ? (labels[i] ?? "").slice(0, 20) : "")),
      };
    const room = Math.max(8, Math.floor((this.view.height - 60) / 7)); // letters beside an axis
    const fitted = (title) => (title.length > room ? `${title.slice(0, room - 1)}…` : title);
    const axis = (about, more) => ({
      stroke: () => this.ink,
      grid: { stroke: "#8883", width: 1, show: !grid },
      ticks: { stroke: "#8886", width: 1 },
      label: about.title ? fitted(about.title) : undefined,
      labelSize: 18,
      labelFont: "12px system-ui",
      size: 56,
      ...more,
    });
    const scale = (about, side) => ({
      distr: about.log ? 3 : 1,
      dir: grid ? -1 : 1,
      range: () => this.limits(about, side),
    });
    const axes = [
      axis(layout.x, { size: 40, space: 80, ...labelled(grid ? grid.columns : panel.labels) }),
      axis(layout.y, { scale: "y", ...labelled(grid?.rows) }),
    ];
    const scales = {
      x: { time: layout.x.time, distr: layout.x.log ? 3 : 1, range: () => this.reach() },
      y: scale(layout.y, "left"),
    };
    if (layout.right) {
      scales.right = scale(layout.right, "right");
      axes.push(axis(layout.right, { scale: "right", side: 1, grid: { show: false } }));
    }
    const plain = { scale: "y", paths: () => null, points: { show: false } };
    const options = {
      width,
      height: this.view.height,
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"), // the kernel has made it local time
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales,
      axes,
      series: [{}, plain, { ...plain, scale: layout.right ? "right" : "y" }],
      hooks: {
        draw: [(u) => this.paint(u)],
        setCursor: [() => this.view.values()],
        setSelect: [(u) => this.select(u)],
        ready: [(u) => u.over.addEventListener("dblclick", () => this.select(null))],
      },
    };
    this.el.textContent = "";
    this.uplot = new uPlot(options, [[0, 1], [0, 1], [0, 1]], this.el);
  }
  // Zoom into what was dragged over, or back out.
  select(u) {
    if (u) {
      const { left, width } = u.select;
      if (width < 4) return;
      this.zoom = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    } else this.zoom = null;
    this.view.draw();
  }
  // What is seen of x: what was zoomed into, else what the job asks for, else all.
  reach() {
    const { layout } = this;
    if (this.zoom) return this.zoom;
    let low = Infinity, high = -Infinity;
    for (const mark of this.marks) {
      const [from, to] = LIMITS[mark.m](this.store, mark, null, layout.x.log);
      low = Math.min(low, from);
      high = Math.max(high, to);
    }
    low = layout.x.low ?? low;
    high = layout.x.high ?? high;
    return low < high ? [low, high] : low === high ? [low - 0.5, high + 0.5] : layout.x.log ? [1, 10] : [0, 1];
  }
  limits(about, side) {
    const seen = this.reach();
    let low = Infinity, high = -Infinity;
    for (const mark of this.marks) {
      if ((mark.side ?? "left") !== side) continue;
      const [from, to] = LIMITS[mark.m](this.store, mark, seen, about.log);
      low = Math.min(low, from, to);
      high = Math.max(high, from, to);
    }
    if (!(low <= high)) [low, high] = about.log ? [1, 10] : [0, 1];
    if (about.log) [low, high] = [low / 1.2, high * 1.2];
    else if (!this.grid) {
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      const bars = this.panel.marks.some((mark) => mark.m === "bars");
      [low, high] = [bars && low >= 0 ? 0 : low - room, high + room];
    }
    return [about.low ?? low, about.high ?? high];
  }
  paint(u) {
    const { ctx, bbox } = u, { store, layout } = this;
    const map = (scale, log) => {
      const { min, max } = u.scales[scale], f = log ? Math.log10 : (v) => v;
      const at = u.valToPos(min, scale, true), slope = (u.valToPos(max, scale, true) - at) / (f(max) - f(min));
      return (value) => at + (f(value) - f(min)) * slope;
    };
    const ratio = devicePixelRatio, X = map("x", layout.x.log), { ink } = this;
    const sides = { left: [map("y", layout.y.log), u.scales.y, layout.y.log] };
    if (layout.right) sides.right = [map("right", layout.right.log), u.scales.right, layout.right.log];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.textBaseline = "alphabetic"; // uPlot leaves its own
    for (const mark of this.marks) {
      const [Y, scale, log] = sides[mark.side ?? "left"] ?? sides.left;
      ctx.save();
      ctx.globalAlpha = mark.opacity ?? 1;
      PAINT[mark.m](ctx, store, mark, {
        X, Y, ratio, ink, log, color: this.view.theme.of(mark.color), x0: u.scales.x.min, x1: u.scales.x.max, y0: scale.min,
        width: bbox.width, top: bbox.top, bottom: bbox.top + bbox.height, logx: layout.x.log,
      });
      ctx.restore();
    }
    ctx.fillStyle = ctx.strokeStyle = ink;
    ctx.lineWidth = ratio;
    ctx.globalAlpha = 0.7;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    // The newest first: where there is no room for the words of all, the older lines have none.
    const taken = [Infinity, Infinity, Infinity], end = bbox.left + bbox.width;
    for (const [x, text] of this.grid ? [] : [...layout.rules].sort((one, other) => other[0] - one[0])) {
      const px = Math.round(X(x)), wide = ctx.measureText(text).width, gap = 3 * ratio;
      ctx.setLineDash([gap, gap]);
      ctx.beginPath();
      ctx.moveTo(px, bbox.top);
      ctx.lineTo(px, bbox.top + bbox.height);
      ctx.stroke();
      const left = Math.max(bbox.left + gap, px + gap + wide > end ? px - gap - wide : px + gap);
      const row = taken.findIndex((from) => left + wide + gap < from);
      if (row < 0 || px > end || px < bbox.left) continue;
      ctx.fillText(text, left, bbox.top + (12 + 13 * row) * ratio);
      taken[row] = left;
    }
    ctx.restore();
  }
  // The x under the cursor, null without one.
  get cursor() {
    const left = this.uplot?.cursor.left ?? -1;
    return left >= 0 ? this.uplot.posToVal(left, "x") : null;
  }
  get canvas() {
    return this.uplot?.ctx.canvas;
  }
}
