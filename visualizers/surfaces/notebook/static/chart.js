// A chart on the page: what stands above and below its panels, and when they are drawn.

class View {
  constructor(store, el) {
    this.store = store;
    this.panels = [];
    this.hidden = new Set(); // names that were clicked away
    this.changed = this.visible = true;
    this.el = make(el, "div", "looptap");
    this.el.looptap = store;
    this.el.onkeydown = (event) => event.stopPropagation(); // keys pressed here are not the notebook's
    make(this.el, "style").textContent = STYLE;
    const head = make(this.el, "div", "head");
    this.title = make(head, "span", "title");
    this.legend = make(head, "span", "legend");
    const buttons = make(head, "span", "buttons");
    this.hold = this.button(buttons, "Pause", "Hold the picture; what arrives meanwhile is shown when it goes on", () =>
      store.pause(!store.paused),
    );
    this.button(buttons, "PNG", "Save the picture as a file", () => this.save());
    this.note = make(this.el, "div");
    this.plot = make(this.el, "div", "plot");
    this.frames = make(this.el, "div", "frames");
    this.room = this.el.clientWidth; // asked for once: it costs a layout
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.el);
    this.seen = new IntersectionObserver((entries) => {
      const shown = entries[entries.length - 1].isIntersecting;
      if (shown && !this.visible) this.draw();
      this.visible = shown;
    });
    this.seen.observe(this.el);
    this.el.style.transition = "color 1ms"; // its end says that the theme has changed
    this.themed = () => requestAnimationFrame(() => themeOf(this.el).ink !== this.theme?.ink && this.draw());
    this.el.addEventListener("transitionend", (event) => event.target === this.el && this.themed());
    this.attributes = new MutationObserver(this.themed); // where transitions are switched off
    for (const root of [document.documentElement, document.body]) this.attributes.observe(root, { attributes: true });
    if (store.left) store.ask();
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
    clearTimeout(this.telling);
    clearTimeout(this.counted);
    this.store.views.delete(this);
    if (!this.store.views.size) this.store.leave();
    this.resized.disconnect();
    this.seen.disconnect();
    this.attributes.disconnect();
    for (const panel of this.panels) panel.destroy();
  }
  // The width of one panel: they stand side by side while there is room for each.
  get width() {
    const all = Math.max(200, this.room || 600);
    const across = Math.min(this.panels.length || 1, Math.max(1, Math.floor(all / 320)));
    return Math.floor(all / across) - (across > 1 ? 8 : 0);
  }
  get height() {
    return this.store.model.get("height");
  }
  resize() {
    this.room = this.el.clientWidth;
    const { width } = this;
    if (width === this.wide) return;
    for (const panel of this.panels) panel.resize(width);
    this.draw();
  }
  draw() {
    const { layout } = this.store;
    if (!layout) return;
    const theme = themeOf(this.el);
    this.changed ||= theme.ink !== this.theme?.ink;
    this.theme = theme;
    if (this.changed) this.soon();
    const kinds = layout.panels.map((panel) => panel.kind).join();
    if (kinds !== this.kinds) {
      for (const panel of this.panels) panel.destroy();
      this.plot.textContent = "";
      this.panels = layout.panels.map(({ kind }) => new PANELS[kind](this, make(this.plot, "div", `panel ${kind}`)));
    }
    this.kinds = kinds;
    this.wide = this.width;
    this.panels.forEach((panel, i) => panel.draw(layout.panels[i], layout, this.wide));
    this.values();
  }
  // What stands around the plot need not change sixty times a second.
  soon() {
    const wait = 150 - (performance.now() - (this.told ?? -1000));
    if (wait <= 0) this.tell();
    else this.telling ??= setTimeout(() => this.tell(), wait);
  }
  // Everything but the plot: title, legend, badges, the slider of the frames.
  tell() {
    const { layout, paused } = this.store;
    clearTimeout(this.telling);
    this.telling = null;
    this.told = performance.now();
    this.changed = false;
    this.hold.textContent = paused ? "Go on" : "Pause";
    this.hold.classList.toggle("on", paused);
    if (!layout) return;
    this.title.textContent = layout.title;
    this.title.hidden = !layout.title;
    this.legend.textContent = "";
    this.shown = new Map();
    for (const { name, color } of layout.panels.flatMap((panel) => panel.marks)) {
      if (!name || !color || this.shown.has(name)) continue;
      const entry = make(this.legend, "span", this.hidden.has(name) ? "off" : "");
      entry.title = "Click to hide or show";
      make(entry, "i").style.background = this.theme.of(color);
      entry.append(name);
      this.shown.set(name, make(entry, "b"));
      entry.onclick = () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.tell();
        this.draw();
      };
    }
    this.legend.classList.toggle("many", this.shown.size > 2);
    if (this.shown.size === 1 && this.shown.has(layout.title)) this.title.hidden = true; // the legend has the same words
    this.note.textContent = "";
    for (const badge of layout.badges) make(this.note, "div", "badge", badge);
    if (layout.guess) make(this.note, "div", "guess", layout.guess);
    this.turn(layout);
  }
  turn({ frame, playing }) {
    this.frames.hidden = !frame || frame[1] < 2;
    if (!frame) return;
    if (!this.slider) {
      this.play = this.button(this.frames, "", "Show each frame as it comes, or hold one", () =>
        this.store.send({ t: "play", on: !this.playing }),
      );
      this.slider = make(this.frames, "input");
      this.slider.type = "range";
      this.slider.min = 0;
      this.slider.oninput = () => this.store.send({ t: "seek", frame: +this.slider.value });
      this.where = make(this.frames, "span");
    }
    const [index, count] = frame;
    this.playing = playing;
    this.play.textContent = playing ? "❚❚" : "▶";
    this.slider.max = Math.max(0, count - 1);
    if (document.activeElement !== this.slider || playing) this.slider.value = index;
    this.where.textContent = `${index + 1} / ${count}`;
  }
  // The values in the legend, ten times a second: under the cursor, else the newest.
  values() {
    this.counted ??= setTimeout(() => {
      this.counted = null;
      this.count();
    }, 100);
  }
  count() {
    const { store } = this, index = store.layout.panels.findIndex((panel) => panel.kind === "plane");
    if (index < 0 || !this.shown || !this.panels[index]) return;
    const x = this.panels[index].cursor, told = new Set();
    for (const mark of store.layout.panels[index].marks) {
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
    const sources = this.panels.map((panel) => panel.canvas).filter(Boolean);
    if (!sources.length) return;
    const ratio = devicePixelRatio, head = 22 * ratio, canvas = document.createElement("canvas");
    canvas.width = sources.reduce((sum, source) => sum + source.width, 0);
    canvas.height = Math.max(...sources.map((source) => source.height)) + head;
    const ctx = canvas.getContext("2d"), { ink, ground } = this.theme;
    ctx.fillStyle = ground;
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    let left = 0;
    for (const source of sources) {
      ctx.drawImage(source, left, head);
      left += source.width;
    }
    ctx.font = `${12 * ratio}px system-ui`;
    left = 8 * ratio;
    const marks = this.store.layout.panels.flatMap((panel) => panel.marks);
    const colors = new Map(marks.map((mark) => [mark.name, mark.color && this.theme.of(mark.color)]));
    for (const [text, color] of [[this.store.layout.title, ink], ...[...this.shown.keys()].map((n) => [n, colors.get(n)])]) {
      ctx.fillStyle = color;
      ctx.fillText(text, left, head * 0.7);
      left += ctx.measureText(text).width + (text ? 12 * ratio : 0);
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
  const still = hideStill(el, model.get("still"));
  const view = new View(storeOf(model), el);
  return () => {
    still();
    view.remove();
  };
};

// The picture that is kept beside the chart, for when there is no kernel, is not seen while there is one.
const hideStill = (el, name) => {
  const hidden = new Set();
  const look = (within) => {
    for (const image of within.querySelectorAll?.('img[src^="data:image/png;base64,"]') ?? []) {
      const child = image.closest(".jp-OutputArea-child");
      if (!child || !atob(image.src.slice(22, 422)).includes(name)) continue;
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
