// Tables, and the one of the runs that are compared.
const TABLE_MILLISECONDS = 10_000;

const table = (el, titles, rows) => {
  const found = make(null, "table");
  const line = (cells, tag) => {
    const row = make(found, "tr");
    for (const cell of cells) {
      const box = make(row, tag);
      if (cell instanceof Node) box.append(cell);
      else box.textContent = box.title = cell;
    }
  };
  if (titles) line(titles, "th");
  for (const row of rows) line(row, "td");
  el.replaceChildren(found);
};

const button = (text, title, act) => {
  const found = make(null, "button", "", text);
  found.title = title;
  found.onclick = act;
  return found;
};

// The runs that are compared, as a table: where, sort, down and across of the page's state.
class RunsTable {
  constructor(page) {
    this.page = page;
    this.el = $("table");
    [this.form, this.error, this.room, this.note, this.place] = this.el.children;
    this.form.onsubmit = (event) => {
      event.preventDefault();
      const sort = $("order").value.trim(), { state } = this.page;
      this.set({ where: $("filter").value.trim(), sort, down: state.down && sort === state.sort });
    };
    $("across").onclick = () => this.set({ across: !this.page.state.across });
    $("only").onclick = () => this.page.choose(this.keys);
    setInterval(() => this.live && document.visibilityState === "visible" && this.show(), TABLE_MILLISECONDS);
  }
  get asked() {
    return { ...this.applied, down: this.page.state.down };
  }
  // True while a run of the table may still change.
  get live() {
    const { runs } = this.page.state;
    return runs.length > 1 && this.page.known.some(({ key, state }) => state === "live" && runs.includes(key));
  }
  set(about) {
    Object.assign(this.page.state, about);
    if ("sort" in about) this.apply();
    this.page.write();
    return this.show();
  }
  what({ where, sort }) {
    return ["table", where, sort];
  }
  // Sort and filter as the state says, at a click.
  apply() {
    const { runs, where, sort } = this.page.state;
    this.applied = { where, sort };
    [$("filter").value, $("order").value] = [where, sort];
    this.page.drawn.add(runs, this.what(this.applied));
  }
  // Begin with the runs of the state.
  begin() {
    const { runs, where, sort } = this.page.state;
    [$("filter").value, $("order").value] = [where, sort];
    this.applied = !(where || sort) || this.page.drawn.has(runs, this.what({ where, sort })) ? { where, sort } : { where: "", sort: "" };
    this.card?.remove();
    this.card = null;
    this.drawn = "";
    this.el.hidden = runs.length < 2;
    this.show();
  }
  async show() {
    const { runs, where, down, across } = this.page.state, { sort } = this.applied;
    if (runs.length < 2) return;
    const waits = where !== this.applied.where || this.page.state.sort !== sort;
    this.form.className = waits ? "waiting" : "";
    const turn = (this.turn = {});
    const { value, error, lost } = await this.page.link.ask("table", { runs, ...this.asked });
    if (turn !== this.turn || lost) return;
    this.error.hidden = !error;
    this.error.textContent = error ?? "";
    if (error) return;
    const { titles, rows, without } = value, all = value.all;
    this.keys = rows.map(({ key }) => key);
    const heads = titles.map((title) => {
      const mark = title === sort ? (down ? " ↑" : " ↓") : "";
      return button(`${title}${mark}`, `Sort by ${title}, the best first; again: the last first`, () => {
        this.set({ where: this.applied.where, sort: title, down: title === sort && !down });
      });
    });
    table(this.room, heads, rows.map(({ key, cells, problem }) => [button(cells[0], problem || `Show ${key} alone`, () => this.page.choose([key])), ...cells.slice(1)]));
    titles.forEach((title, i) => title === sort && (this.room.querySelectorAll("th")[i].ariaSort = down ? "descending" : "ascending"));
    this.note.textContent = [`${rows.length} of ${all} runs`, waits && "The fields above come from the address; press Apply to use them", ...without].filter(Boolean).join(". ");
    $("only").disabled = !rows.length || rows.length === runs.length;
    $("across").ariaPressed = String(!!across);
    await this.lines(across && rows.length, JSON.stringify(rows));
  }
  // Draw the rows as lines across axes, again if they have changed.
  async lines(wanted, rows) {
    if (!wanted || this.drawn !== rows) {
      this.card?.remove();
      this.card = null;
    }
    this.drawn = rows;
    if (!wanted || this.card) return;
    this.card = new Card(this.page.link, { q: "Parallel coordinates" }, "parallel", this.place, () => this.set({ across: false }));
    Object.assign(this.card.about, this.asked);
    await this.card.draw(this.page.state.runs, "");
  }
}
