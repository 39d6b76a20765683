// A chart on the page: what stands above and below its panels, and when they are drawn.

const LEGEND_SHARE = 0.25; // of the height of a plot, the most that its legend takes
const KEYS = { l: "log", c: "clip", s: "smooth" };

class View {
  constructor(store, el) {
    this.store = store;
    this.panels = [];
    this.options = {}; // what is looked at otherwise than the job says
    this.hidden = new Set(); // names that were clicked away
    this.changed = this.visible = true;
    this.el = make(el, "div", "looptap");
    this.el.looptap = store;
    this.el.view = this;
    this.el.tabIndex = 0;
    this.el.onkeydown = (event) => this.pressed(event);
    this.el.addEventListener("pointerdown", ({ target }) => {
      if (!target.closest("input, select, button")) this.el.focus({ preventScroll: true }); // its keys are heard then
    });
    if (STYLE) make(this.el, "style").textContent = STYLE; // a page of ours has it in a file: none may stand inline there
    const head = make(this.el, "div", "head");
    this.title = make(head, "span", "title");
    this.tools = new Tools(this, make(head, "span", "buttons"));
    this.legend = new Legend(this, make(this.el, "div", "names"));
    this.plot = make(this.el, "div", "plot");
    this.frames = make(this.el, "div", "frames");
    this.note = make(this.el, "div", "notes");
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
  // ------------------------------------------------------------ what is looked at
  look(what) {
    return this.options[what] ?? this.store.layout[what];
  }
  set(what, value) {
    this.options[what] = value;
    for (const panel of this.panels) panel.fences = null;
    this.tell();
    this.draw();
  }
  // An upright axis as this page looks at it.
  looked(axis) {
    const { log = axis.log, low = axis.low, high = axis.high } = this.options;
    return axis === this.store.layout.y ? { ...axis, log, low, high } : { ...axis, log };
  }
  get log() {
    return this.options.log ?? this.store.layout.y.log;
  }
  hides(name) {
    return this.only ? this.only !== name : this.hidden.has(name);
  }
  reset() {
    if (this.options.x !== undefined) this.store.send({ t: "x", x: this.initial });
    this.options = {};
    this.hidden.clear();
    this.only = null;
    for (const panel of this.panels) panel.reset?.();
    this.tools.show();
    this.tell();
    this.draw();
  }
  // Keys pressed here are not the notebook's.
  pressed(event) {
    event.stopPropagation();
    if (event.target !== this.el || event.ctrlKey || event.metaKey || event.altKey) return;
    const what = KEYS[event.key];
    if (what === "log") this.set("log", !this.log);
    else if (what === "clip") this.set("clip", !this.look("clip"));
    else if (what === "smooth") this.set("smooth", { 0: 0.6, 0.6: 0.9, 0.9: 0.97 }[this.look("smooth") ?? 0] ?? 0);
    else if (event.key === "r") this.reset();
    else if (event.key === "v") this.tools.turn();
    else if (event.key === " " && !this.store.still) this.store.pause(!this.store.paused);
    else return;
    event.preventDefault();
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
    if (!this.el.clientWidth) return; // hidden: draw it when it has a width again
    this.room = this.el.clientWidth;
    const { width } = this;
    if (width === this.wide) return this.legend.fit();
    for (const panel of this.panels) panel.resize(width);
    this.changed = true;
    this.draw();
  }
  // ------------------------------------------------------------ drawing
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
    const { layout } = this.store;
    clearTimeout(this.telling);
    this.telling = null;
    this.told = performance.now();
    this.changed = false;
    this.tools.show();
    if (!layout) return;
    this.title.textContent = this.title.title = layout.title;
    this.title.hidden = !layout.title;
    this.legend.show(layout);
    this.count(); // at once: no further frame may come
    const { names } = this.legend;
    if (names.size === 1 && names.has(layout.title)) this.title.hidden = true; // the legend has the same words
    this.note.textContent = "";
    for (const badge of layout.badges) make(this.note, "div", "badge", badge).title = badge;
    if (this.options.log && this.unplaced(layout))
      make(this.note, "div", "badge", "numbers that are not positive have no place on a logarithmic axis");
    if (layout.guess) make(this.note, "div", "guess", layout.guess).title = layout.guess;
    this.turn(layout);
  }
  // Whether a line has numbers that a logarithmic axis leaves out.
  unplaced(layout) {
    const lines = layout.panels.flatMap((panel) => panel.marks.filter(({ m, z }) => m === "line" && !z));
    return lines.some((mark) => extent(this.store.column(mark.y))[0] <= 0);
  }
  turn({ frame, playing }) {
    this.frames.hidden = !frame || frame[1] < 2 || this.store.still;
    if (!frame) return;
    if (!this.slider) {
      this.play = this.tools.button(this.frames, "", "Show each frame as it comes, or hold one", () =>
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
    const plane = this.panels.find((panel) => panel instanceof Plane && panel.panel);
    if (plane) this.legend.count(plane);
  }
  // All values at the x of the cursor, in a box beside it.
  hover(plane) {
    this.values();
    plane.under = plane.cursor !== null;
    plane.tip.show(plane);
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
