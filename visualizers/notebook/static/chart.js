// A chart on the page: uPlot keeps axes, cursor and zoom, the marks are painted by paint.js. All texts are text nodes.

const make = (parent, tag, name = "", text = "") => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  parent?.append(node);
  return node;
};

class View {
  constructor(store, el) {
    this.store = store;
    this.zoom = null;
    this.hidden = new Set(); // names that were clicked away
    this.changed = this.visible = true;
    this.el = make(el, "div", "looptap");
    this.el.looptap = store;
    make(this.el, "style").textContent = STYLE;
    const head = make(this.el, "div", "head");
    this.title = make(head, "span", "title");
    this.legend = make(head, "span", "legend");
    this.hold = this.button(head, "Pause", "Hold the picture; what arrives meanwhile is shown when it goes on", () =>
      store.pause(!store.paused),
    );
    this.button(head, "PNG", "Save the picture as a file", () => this.save());
    this.note = make(this.el, "div");
    this.plot = make(this.el, "div", "plot");
    this.frames = make(this.el, "div", "frames");
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.el);
    this.seen = new IntersectionObserver((entries) => {
      const shown = entries[entries.length - 1].isIntersecting;
      if (shown && !this.visible) this.draw();
      this.visible = shown;
    });
    this.seen.observe(this.el);
    store.views.add(this);
    this.draw();
  }
  button(parent, text, title, press) {
    const node = make(parent, "button", "", text);
    node.title = title;
    node.onclick = press;
    return node;
  }
  remove() {
    this.store.views.delete(this);
    this.resized.disconnect();
    this.seen.disconnect();
    this.uplot?.destroy();
  }
  get width() {
    return Math.max(200, this.el.clientWidth || 600);
  }
  resize() {
    if (this.uplot && this.uplot.width !== this.width) this.uplot.setSize({ width: this.width, height: this.height });
  }
  get height() {
    return this.store.model.get("height");
  }
  get marks() {
    return this.store.layout.marks.filter((mark) => !this.hidden.has(mark.name) || !mark.name);
  }
  draw() {
    const { store } = this;
    if (!store.layout) return;
    const shape = JSON.stringify([store.layout.x, store.layout.y, store.layout.right, store.layout.labels]);
    if (this.changed) this.tell();
    this.changed = false;
    if (this.shape !== shape) this.build();
    this.shape = shape;
    this.uplot.setData([[0, 1], [0, 1], [0, 1]], true);
    this.values();
  }
  build() {
    const { layout } = this.store;
    this.uplot?.destroy();
    const ink = getComputedStyle(this.el).color;
    const labelled = (labels) =>
      labels.length && {
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
        values: (_, at) => at.map((i) => (Number.isInteger(i) ? (labels[i] ?? "").slice(0, 20) : "")),
      };
    const axis = (about, more) => ({
      stroke: ink,
      grid: { stroke: "#8883", width: 1 },
      ticks: { stroke: "#8886", width: 1 },
      label: about.title || undefined,
      labelSize: 18,
      labelFont: "12px system-ui",
      size: 56,
      ...more,
    });
    const scale = (about, side) => ({
      distr: about.log ? 3 : 1,
      dir: layout.marks.some((mark) => mark.m === "grid") ? -1 : 1,
      range: () => this.limits(about, side),
    });
    const axes = [
      axis(layout.x, { size: 40, ...labelled(layout.labels.x) }),
      axis(layout.y, { scale: "y", ...labelled(layout.labels.y) }),
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
      width: this.width,
      height: this.height,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales,
      axes,
      series: [{}, plain, { ...plain, scale: layout.right ? "right" : "y" }],
      hooks: {
        draw: [(u) => this.paint(u)],
        setCursor: [() => this.values()],
        setSelect: [(u) => this.select(u)],
        ready: [(u) => u.over.addEventListener("dblclick", () => this.select(null))],
      },
    };
    this.plot.textContent = "";
    this.uplot = new uPlot(options, [[0, 1], [0, 1], [0, 1]], this.plot);
  }
  select(u) {
    if (u) {
      const { left, width } = u.select;
      if (width < 4) return;
      this.zoom = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    } else this.zoom = null;
    this.draw();
  }
  // What is seen of x: what was zoomed into, else what the job asks for, else all.
  reach() {
    const { layout } = this.store;
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
    const { layout } = this.store, seen = this.reach();
    let low = Infinity, high = -Infinity;
    for (const mark of this.marks) {
      if ((mark.side ?? "left") !== side) continue;
      const [from, to] = LIMITS[mark.m](this.store, mark, seen, about.log);
      low = Math.min(low, from, to);
      high = Math.max(high, from, to);
    }
    if (!(low <= high)) [low, high] = about.log ? [1, 10] : [0, 1];
    if (about.log) [low, high] = [low / 1.2, high * 1.2];
    else if (!layout.marks.some((mark) => mark.m === "grid")) {
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      const bars = layout.marks.some((mark) => mark.m === "bars");
      [low, high] = [bars && low >= 0 ? 0 : low - room, high + room];
    }
    return [about.low ?? low, about.high ?? high];
  }
  paint(u) {
    const { ctx, bbox } = u, { store } = this;
    const map = (scale, log) => {
      const { min, max } = u.scales[scale], f = log ? Math.log10 : (v) => v;
      const at = u.valToPos(min, scale, true), slope = (u.valToPos(max, scale, true) - at) / (f(max) - f(min));
      return (value) => at + (f(value) - f(min)) * slope;
    };
    const ink = getComputedStyle(this.el).color, ratio = devicePixelRatio;
    const X = map("x", store.layout.x.log);
    const sides = { left: [map("y", store.layout.y.log), u.scales.y, store.layout.y.log] };
    if (store.layout.right) sides.right = [map("right", store.layout.right.log), u.scales.right, store.layout.right.log];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui`;
    for (const mark of this.marks) {
      const [Y, scale, log] = sides[mark.side ?? "left"] ?? sides.left;
      ctx.save();
      ctx.globalAlpha = mark.opacity ?? 1;
      PAINT[mark.m](ctx, store, mark, {
        X, Y, ratio, ink, log, x0: u.scales.x.min, x1: u.scales.x.max, y0: scale.min,
        width: bbox.width, bottom: bbox.top + bbox.height,
      });
      ctx.restore();
    }
    ctx.fillStyle = ctx.strokeStyle = ink;
    ctx.lineWidth = ratio;
    ctx.globalAlpha = 0.7;
    store.layout.rules.forEach(([x, text], i) => {
      const px = Math.round(X(x)), py = bbox.top + (12 + 13 * (i % 3)) * ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(px, bbox.top);
      ctx.lineTo(px, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(text, px + 3 * ratio, py);
    });
    ctx.restore();
  }
  // Everything but the plot: title, legend, badges, the slider of the frames.
  tell() {
    const { layout, paused } = this.store;
    this.hold.textContent = paused ? "Go on" : "Pause";
    this.hold.classList.toggle("on", paused);
    if (!layout) return;
    this.title.textContent = layout.title;
    this.title.hidden = !layout.title;
    this.legend.textContent = "";
    this.shown = new Map();
    for (const { name, color, m } of layout.marks) {
      if (!name || m === "grid" || this.shown.has(name)) continue;
      const entry = make(this.legend, "span", this.hidden.has(name) ? "off" : "");
      entry.title = "Click to hide or show";
      make(entry, "i").style.background = color;
      entry.append(name);
      this.shown.set(name, make(entry, "b"));
      entry.onclick = () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.changed = true;
        this.draw();
      };
    }
    this.note.textContent = "";
    for (const badge of layout.badges) make(this.note, "div", "badge", badge);
    if (layout.guess) make(this.note, "div", "guess", layout.guess);
    this.turn(layout);
  }
  turn({ frame, playing }) {
    this.frames.hidden = !frame;
    if (!frame) return;
    if (!this.slider) {
      this.play = this.button(this.frames, "", "Show each frame as it comes, or hold one", () =>
        this.store.model.send({ t: "play", on: !this.playing }),
      );
      this.slider = make(this.frames, "input");
      this.slider.type = "range";
      this.slider.min = 0;
      this.slider.oninput = () => this.store.model.send({ t: "seek", frame: +this.slider.value });
      this.where = make(this.frames, "span");
    }
    const [index, count] = frame;
    this.playing = playing;
    this.play.textContent = playing ? "❚❚" : "▶";
    this.slider.max = Math.max(0, count - 1);
    if (document.activeElement !== this.slider || playing) this.slider.value = index;
    this.where.textContent = `${index + 1} / ${count}`;
  }
  // The values in the legend: under the cursor, else the newest.
  values() {
    if (!this.uplot || !this.shown) return;
    const { store } = this, left = this.uplot.cursor.left;
    const x = left >= 0 ? this.uplot.posToVal(left, "x") : null;
    const told = new Set();
    for (const mark of store.layout.marks) {
      const node = this.shown.get(mark.name);
      if (mark.m !== "line" || !node || told.has(mark.name)) continue;
      told.add(mark.name);
      const xs = store.column(mark.x), ys = store.column(mark.y);
      let i = xs.length - 1;
      if (x !== null && store.sorted(mark.x)) {
        i = Math.min(i, lower(xs, x));
        if (i > 0 && x - xs[i - 1] < xs[i] - x) i -= 1;
      }
      const text = i < 0 ? "" : x === null ? short(ys[i]) : `${short(ys[i])} at ${short(xs[i])}`;
      if (node.textContent !== text) node.textContent = text;
    }
  }
  save() {
    const source = this.uplot?.ctx.canvas;
    if (!source) return;
    const head = 22 * devicePixelRatio, canvas = document.createElement("canvas");
    canvas.width = source.width;
    canvas.height = source.height + head;
    const ctx = canvas.getContext("2d"), dark = getComputedStyle(this.el).color.match(/\d+/g)[0] > 128;
    ctx.fillStyle = dark ? "#111" : "#fff";
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.drawImage(source, 0, head);
    ctx.font = `${12 * devicePixelRatio}px system-ui`;
    let at = 8 * devicePixelRatio;
    for (const [text, color] of [[this.store.layout.title, getComputedStyle(this.el).color],
      ...this.marks.filter((mark) => this.shown.has(mark.name)).map((mark) => [mark.name, mark.color])]) {
      ctx.fillStyle = color;
      ctx.fillText(text, at, head * 0.7);
      at += ctx.measureText(text).width + (text ? 12 * devicePixelRatio : 0);
    }
    canvas.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${(this.store.layout.title || "chart").replace(/[^\w-]+/g, "-")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
}

const stores = new Map(); // by chart: two views of a page share what has arrived

const storeOf = (model) => {
  const key = model.get("identity");
  if (!stores.has(key)) stores.set(key, new Store(model));
  return stores.get(key);
};

export const initialize = (model) => {
  storeOf(model);
  return () => stores.delete(model.get("identity"));
};

export const render = (model, el) => {
  const still = hideStill(el, model.get("identity"));
  const view = new View(storeOf(model), el);
  return () => {
    still();
    view.remove();
  };
};

// The picture that is kept beside the chart, for when there is no kernel, is not seen while there is one.
const hideStill = (el, identity) => {
  const hidden = new Set();
  const look = (within) => {
    for (const image of within.querySelectorAll?.('img[src^="data:image/png;base64,"]') ?? []) {
      const child = image.closest(".jp-OutputArea-child");
      if (!child || !atob(image.src.slice(22, 422)).includes(identity)) continue;
      child.style.display = "none";
      hidden.add(child);
    }
  };
  const watch = new MutationObserver((changes) => {
    for (const { target, addedNodes } of changes) if (!el.contains(target)) for (const _ of addedNodes) look(target);
  });
  const settle = setTimeout(() => {
    const area = el.closest(".jp-OutputArea");
    if (!area) return;
    watch.observe(area, { childList: true, subtree: true });
    look(area);
  });
  return () => {
    clearTimeout(settle);
    watch.disconnect();
    for (const child of hidden) child.style.display = "";
  };
};
