// The charts of the page: Store and View, as in a notebook, each on a card.
let charts = 0; // names of charts are never used twice

// A text on one line, with what a reader would not see: a query must not look like another one.
const plainly = (text) => text.replace(/\s+/g, " ").replace(/\p{C}/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);

class Card {
  constructor(link, about, kind = "chart", el = $("charts"), removed = () => page.removed(this)) {
    [this.link, this.kind] = [link, kind];
    this.about = about; // q, on, window, every, name
    this.name = `c${++charts}`;
    this.views = [];
    this.el = make(el, "article");
    const head = make(this.el, "div");
    const { q, name } = about, words = [q, this.how].filter(Boolean).join(" · ");
    this.label = make(head, "span", "asked", name || words);
    this.label.title = words;
    const remove = make(head, "button", "remove", "×");
    remove.title = remove.ariaLabel = `Remove ${name || q}`;
    remove.onclick = removed;
    this.wrong = make(this.el, "p", "wrong");
    this.wrong.hidden = true;
    this.room = make(this.el, "div");
  }
  get how() {
    const { on, window: size, every, unsafe } = this.about;
    return [on && `on ${on}`, size && `window ${size}`, every && `every ${every}`, unsafe && "unsafe: runs as it is, even if it may change the job"].filter(Boolean).join(" · ");
  }
  // What is drawn, whatever its name is.
  get what() {
    const { q, on, window: size, every } = this.about;
    return [q, on || "", size || "", every || 1];
  }
  // Show its text, until a click draws it.
  wait(act) {
    this.el.className = "waiting";
    this.label.textContent = "From the address";
    this.label.title = "";
    make(this.room, "code", "", plainly(this.about.q));
    make(this.room, "p", "hint", plainly(this.how));
    make(this.room, "button", "", "Draw").onclick = act;
    this.waiting = true;
  }
  release() {
    const { q, name } = this.about;
    this.waiting = false;
    this.el.className = this.room.textContent = "";
    this.label.title = [q, this.how].filter(Boolean).join(" · ");
    this.label.textContent = name || this.label.title;
  }
  // Ask for it; returns the error, if any.
  async draw(runs, x, typed = false) {
    if (this.kind === "chart") page.drawn.add(runs, this.what);
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
