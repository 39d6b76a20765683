// The charts of the page: Store and View, as in a notebook, each on a card.
let charts = 0; // names of charts are never used twice

class Card {
  constructor(link, about, kind = "chart", el = $("charts"), removed = () => page.removed(this)) {
    [this.link, this.kind] = [link, kind];
    this.about = about; // q, on, window, every, name
    this.name = `c${++charts}`;
    this.views = [];
    this.el = make(el, "article");
    const head = make(this.el, "div");
    const { q, on, window: size, name } = about;
    const words = [q, on && `on ${on}`, size && `window ${size}`].filter(Boolean).join(" · ");
    make(head, "span", "asked", name || words).title = words;
    const remove = make(head, "button", "remove", "×");
    remove.title = remove.ariaLabel = `Remove ${name || q}`;
    remove.onclick = removed;
    this.wrong = make(this.el, "p", "wrong");
    this.wrong.hidden = true;
    this.room = make(this.el, "div");
  }
  // Ask for it; returns the error, if any.
  async draw(runs, x, typed = false) {
    const { value, error, lost } = await this.link.ask(this.kind, { chart: this.name, runs, x, typed, ...this.about });
    if (this.removed) return "";
    this.wrong.hidden = !error || lost;
    this.wrong.textContent = error ?? "";
    if (error) return error;
    this.clear();
    this.el.firstChild.className = value.canvases.length === 1 ? "one" : ""; // its buttons stand beside its query
    for (const canvas of value.canvases) {
      const store = new Store(new Model(this.link, canvas));
      this.views.push([canvas, store, new View(store, make(this.room, "div"))]);
    }
    return "";
  }
  clear() {
    for (const [canvas, , view] of this.views) {
      view.remove();
      this.link.models.delete(canvas);
    }
    this.views = [];
    this.room.textContent = "";
  }
  remove(say = true) {
    this.removed = true;
    this.clear();
    this.el.remove();
    if (say) this.link.ask("drop", { chart: this.name });
  }
}
