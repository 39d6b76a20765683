// The page of `looptap web`: what stands around the charts, its state in the address, and what its user does. The charts are
// Store and View, as in a notebook; a Model takes the place of the notebook's, and a Link the place of its kernel.
const MAX_FIRST_CHARTS = 6;
const MAX_CHARTS = 32; // that an address may bring

const ago = (started) => {
  const seconds = Math.max(0, Date.now() / 1000 - started);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
};

class Page {
  constructor() {
    this.cards = [];
    this.drawn = new Drawn();
    this.rows = new Map(); // of the panel, by name
    this.known = []; // all runs
    this.seen = {}; // facts of the run in front
    this.state = this.read();
    this.operate = false;
    this.words = new Words($("query"), $("words"));
    this.table = new RunsTable(this);
    $("tick").onclick = () => this.choose(this.known.filter(({ problem }) => !problem).map(({ key }) => key));
    $("door").onsubmit = (event) => {
      event.preventDefault();
      this.link.unlock($("token").value);
      $("token").value = "";
    };
    const [all, none] = $("waiting").querySelectorAll("button");
    all.onclick = () => this.release(this.waiting);
    none.onclick = () => this.waiting.forEach((card) => this.removed(card));
    $("offers").firstChild.onclick = () => this.draw(this.seen.gradient);
    $("ask").onsubmit = (event) => this.typed(event);
    $("x").onchange = () => this.over($("x").value);
    $("on").onchange = () => this.learn();
    addEventListener("hashchange", () => this.moved());
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input, select, .looptap")) return;
      event.preventDefault();
      $("query").focus();
    });
  }
  start() {
    this.link = new Link();
  }
  // ------------------------------------------------------------ state in the address
  read() {
    const found = new URLSearchParams(location.hash.slice(1));
    const chart = (text) => {
      if (!text.startsWith("{")) return { q: text };
      try {
        const { q = "", on, window: size, every, name, unsafe } = JSON.parse(text);
        return { q: String(q), on, window: size, every, name, unsafe: unsafe === true };
      } catch {
        return { q: text };
      }
    };
    return {
      runs: found.getAll("run"), charts: found.has("c") ? found.getAll("c").filter(Boolean).slice(0, MAX_CHARTS).map(chart) : null, x: found.get("x") ?? "",
      where: found.get("where") ?? "", sort: found.get("sort") ?? "", down: found.has("down"), across: found.has("across"),
    };
  }
  write(push = false) {
    const { runs, charts, x, where, sort, down, across } = this.state, found = new URLSearchParams();
    for (const run of runs) found.append("run", run);
    for (const { q, ...how } of charts ?? []) {
      const rest = Object.fromEntries(Object.entries(how).filter(([, value]) => value));
      found.append("c", Object.keys(rest).length || q.startsWith("{") ? JSON.stringify({ q, ...rest }) : q);
    }
    if (charts && !charts.length) found.append("c", "");
    for (const [name, value] of Object.entries({ x, where, sort, down: down && "1", across: across && "1" })) if (value) found.set(name, value);
    const hash = `#${found}`;
    if (hash === location.hash) return;
    if (push) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }
  moved() {
    this.state = this.read();
    this.front();
  }
  // ------------------------------------------------------------ what the server says
  greeted({ operate, note, charts }) {
    this.operate = operate;
    this.linked("there", "connected");
    $("door").hidden = true;
    document.body.className = "";
    $("mode").hidden = false;
    $("mode").textContent = operate ? "operate" : "read-only";
    $("mode").className = operate ? "operate" : "";
    $("mode").title = this.note = note;
    this.noted(note);
    $("for-on").hidden = !operate;
    $("query").placeholder = operate ? "A stream, or a query of the job: step, loss" : "A stream, or arithmetic over one: log10(loss)";
    const kept = new Set(charts), drawn = this.cards.filter(({ views }) => views.length);
    if (this.chosen && drawn.every(({ name }) => kept.has(name))) {
      for (const { views } of drawn) for (const [, store] of views) store.ask();
      for (const card of this.cards) if (!card.views.length && !card.waiting) card.draw(this.state.runs, this.state.x);
      this.table.begin();
      this.link.ask("watch", { run: this.state.runs[0] });
    } else this.front();
  }
  noted(text) {
    $("note").textContent = text;
    $("note").hidden = !text;
  }
  // Ask for the token.
  locked(text) {
    this.linked("gone", "no token");
    $("door").hidden = false;
    $("door").querySelector("p").textContent = text;
  }
  linked(state, text) {
    $("link").className = state;
    $("link").lastElementChild.textContent = text;
    document.body.dataset.link = state;
  }
  runs({ runs }) {
    this.known = runs;
    this.list();
    if (!this.chosen) this.front();
  }
  list() {
    const list = $("runs"), top = list.scrollTop;
    list.textContent = "";
    for (const run of this.known) {
      const twin = this.known.some(({ name, key }) => name === run.name && key !== run.key);
      const on = this.state.runs.includes(run.key), item = make(list, "li", on ? "on" : "");
      make(item, "i", `dot ${run.state}`).title = run.problem || run.state || run.kind;
      const button = make(item, "button");
      make(button, "b", "", run.name);
      make(button, "small", "", [run.state || run.kind, run.started && ago(run.started), run.ranks > 1 && `${run.ranks} ranks`, twin && run.key.slice(-6), run.host].filter(Boolean).join(" · "));
      button.title = run.problem || run.key;
      item.onclick = () => this.choose([run.key]);
      const box = make(item, "input");
      box.type = "checkbox";
      box.checked = on;
      box.ariaLabel = `Compare ${run.name}`;
      box.onclick = (event) => {
        event.stopPropagation();
        const others = this.state.runs.filter((key) => key !== run.key);
        this.choose(box.checked ? [...this.state.runs, run.key] : others.length ? others : [run.key]);
      };
    }
    list.scrollTop = top;
    $("tick").hidden = this.known.length < 2;
    $("empty").hidden = this.known.length > 0;
    if (!this.known.length) $("empty").textContent = "No run here yet. One is listed as soon as its process has a looptap.Agent.";
  }
  choose(runs) {
    for (const { waiting, what } of this.cards) if (!waiting) this.drawn.add(runs, what);
    if (this.table.applied) this.drawn.add(runs, this.table.what(this.table.applied));
    this.state = { ...this.state, runs };
    this.write(true);
    this.front();
  }
  // Show the runs of the state.
  async front() {
    let { runs } = this.state;
    if (!runs.length && this.known.length) {
      const live = this.known.filter(({ state }) => state === "live").sort((a, b) => (b.started ?? 0) - (a.started ?? 0));
      runs = this.state.runs = [(live[0] ?? this.known[0]).key];
      this.write();
    }
    if (!runs.length || !this.link || document.body.dataset.link !== "there") return;
    this.chosen = true;
    const turn = (this.turn = {});
    for (const card of this.cards) card.remove();
    this.cards = [];
    $("waiting").hidden = true;
    this.rows.clear();
    this.seen = {};
    $("started").lastElementChild.hidden = true;
    $("panel").children[2].textContent = $("panel").children[3].textContent = "";
    $("x").value = this.state.x;
    this.list();
    const { value, error, lost } = await this.link.ask("watch", { run: runs[0] });
    if (turn !== this.turn || lost) return;
    this.table.begin();
    this.facts({ facts: value ?? { key: runs[0],  name: this.known.find(({ key }) => key === runs[0])?.name ?? runs[0], state: "ended", problems: [error] } });
    if (error) return;
    for (const about of this.state.charts ?? []) this.asked(about);
    this.begin(value.first);
    this.blank();
    this.learn();
  }
  add(about) {
    const card = new Card(this.link, about);
    this.cards.push(card);
    card.draw(this.state.runs, this.state.x);
  }
  // What an address asks for is drawn at a click, unless this browser has drawn it before and it cannot change the job.
  asked(about) {
    const card = new Card(this.link, about);
    this.cards.push(card);
    if (!about.unsafe && this.drawn.has(this.state.runs, card.what)) card.draw(this.state.runs, this.state.x);
    else card.wait(() => this.release([card]));
  }
  get waiting() {
    return this.cards.filter(({ waiting }) => waiting);
  }
  release(cards) {
    for (const card of cards) {
      card.release();
      card.draw(this.state.runs, this.state.x);
    }
    this.blank();
  }
  // Until its user chooses, the page has the first charts of the run, as they come.
  begin(first) {
    if (this.state.charts) return;
    for (const about of first ?? []) {
      if (this.cards.length >= MAX_FIRST_CHARTS) return;
      if (!this.cards.some((card) => card.about.q === about.q && (card.about.on ?? "") === (about.on ?? ""))) this.add(about);
    }
  }
  blank() {
    const { length } = this.waiting, unsafe = this.waiting.some(({ about }) => about.unsafe), [all] = $("waiting").querySelectorAll("button");
    $("waiting").hidden = !length;
    all.hidden = length < 2;
    $("waiting").firstElementChild.textContent = `The address asks for ${length === 1 ? "a chart" : `${length} charts`} that ${unsafe ? "may change the job, or that " : ""}this browser has not drawn before.${this.operate ? " A query is code in the job: draw what you know." : ""}`;
    $("empty").hidden = this.cards.length > 0;
    if (!this.cards.length) $("empty").textContent = this.emptiness();
  }
  // What to say in place of charts, by what the page may show of the run in front.
  emptiness() {
    const { kind, operates, owned, first = [], streams = [] } = this.seen, [known] = [...streams.map(({ name }) => name), ...first.map(({ q }) => q)];
    if (operates || (this.operate && kind !== "live")) return "Type a query above, such as: step, loss";
    if (known) return `Type the name of a stream above, such as: ${known}`;
    if (kind !== "live") return kind ? "This run has stored no stream." : "";
    return owned
      ? "This run has emitted no numbers so far. They appear here as they come."
      : "Nothing of this run is shared so far. What its owner shares appears here.";
  }
  async learn() {
    const turn = this.turn;
    const { value } = await this.link.ask("words", { run: this.state.runs[0], on: $("on").value });
    if (value && turn === this.turn) this.words.known = value;
    document.body.dataset.words = this.words.known.length;
  }
  // ------------------------------------------------------------ what its user does
  async typed(event) {
    event.preventDefault();
    const about = { q: $("query").value.trim(), on: $("on").value.trim(), window: $("window").value.trim(), unsafe: $("unsafe").checked };
    this.wrong("");
    if (!about.q) return this.wrong("Type the name of a stream, or a query.");
    if (!(await this.draw(about))) return;
    $("query").value = "";
    $("unsafe").checked = false;
  }
  // Draw a chart, unless an error comes first: it stands under the field.
  async draw(about) {
    const card = new Card(this.link, about);
    card.el.hidden = true;
    $("ask").ariaBusy = "true";
    const error = await card.draw(this.state.runs, this.state.x, true);
    $("ask").ariaBusy = "false";
    if (error) {
      card.remove();
      this.wrong(error);
      return false;
    }
    this.wrong("");
    card.el.hidden = false;
    this.cards.push(card);
    this.kept();
    card.el.scrollIntoView({ block: "nearest" });
    return true;
  }
  wrong(text) {
    $("error").hidden = !text;
    $("error").textContent = text;
    $("query").ariaInvalid = String(!!text);
  }
  removed(card) {
    this.cards = this.cards.filter((one) => one !== card);
    card.remove();
    this.kept();
  }
  kept() {
    this.state.charts = this.cards.map(({ about }) => about);
    this.write();
    this.blank();
    this.offer();
  }
  over(x) {
    this.state.x = x;
    this.write();
    for (const card of this.cards) if (!card.waiting) card.draw(this.state.runs, x);
  }
  // ------------------------------------------------------------ the run in front
  facts({ facts: news }) {
    const facts = (this.seen = news.key === this.seen.key ? { ...this.seen, ...news } : news);
    const several = this.state.runs.length > 1, name = several ? `${this.state.runs.length} runs compared` : facts.name;
    document.title = `${name} – looptap`;
    $("name").textContent = name;
    const state = facts.reason ? `${facts.state}: ${facts.reason}` : facts.state;
    $("where").textContent = $("where").title = several ? `details: ${facts.name}, ${state}` : [state, facts.where].filter(Boolean).join(" · ");
    const rates = (facts.events ?? []).filter(({ rate }) => rate).map(({ name, rate }) => `${short(rate, 3)} ${name}/s`);
    $("moving").textContent = several ? "" : [facts.moving, ...rates].filter(Boolean).join(" · ");
    $("problem").textContent = (facts.problems ?? []).filter(Boolean).join("\n");
    $("problem").hidden = !$("problem").textContent;
    this.progress(several ? null : facts.progress);
    $("events").replaceChildren(...(facts.events ?? []).map(({ name }) => Object.assign(document.createElement("option"), { value: name })));
    $("for-unsafe").hidden = !facts.operates;
    const viewing = this.operate && facts.kind === "live" && !facts.operates;
    this.noted(viewing ? "You are a viewer of this run: it shows what was shared with you, and arithmetic over that." : this.note);
    this.section("commands", several ? [] : facts.commands, ["at", "what", "change", "by", "outcome"]);
    $("machine").textContent = several ? "" : (facts.machine ?? []).join(" · ");
    this.section("cost", several ? [] : [...(facts.cost ?? []), ...(facts.queries ?? []).map(([query, on, time, share, limit]) => [`${query} on ${on}`, [time, share, limit].filter(Boolean).join(", ")])]);
    const streams = (facts.streams ?? []).map(({ name, on, values, rate, unit, state, exported }) => {
      const drawn = button(name, `Draw ${name}`, () => this.draw({ q: name }));
      return [drawn, on, unit, values.toLocaleString("en"), rate ? `${short(rate, 3)}/s` : "", state, ...(facts.operates ? [this.shown(name, exported)] : [])];
    });
    this.section("streams", streams, ["stream", "on", "unit", "values", "", "state", ...(facts.operates ? ["viewers see it"] : [])], JSON.stringify(facts.streams));
    this.section("config", several ? [] : facts.config);
    const begun = (facts.started_with ?? []).map(([what, text]) => [what, what === "commit" && facts.dirty ? button(text, "Show the changes", () => this.changes()) : text]);
    this.section("started", several ? [] : begun, null, JSON.stringify(facts.started_with));
    this.panel(several ? null : facts);
    this.offer();
    if (facts.first?.length && facts.key === this.state.runs[0] && this.cards.length < MAX_FIRST_CHARTS) this.begin(facts.first);
    this.blank();
  }
  // A box that shows a stream to viewers.
  shown(name, exported) {
    const box = make(null, "input");
    box.type = "checkbox";
    box.checked = exported;
    box.ariaLabel = `Show ${name} to viewers`;
    box.onchange = async () => {
      const { error } = await this.link.ask("export", { name, on: box.checked });
      if (error) box.checked = !box.checked;
      this.wrong(error ?? "");
    };
    return box;
  }
  async changes() {
    const el = $("started").lastElementChild;
    el.hidden = !el.hidden;
    if (el.hidden) return;
    const { value, error } = await this.link.ask("diff", {});
    el.textContent = error ?? value;
  }
  // One click asks for what no event carries.
  offer() {
    const { gradient } = this.seen, several = this.state.runs.length > 1;
    $("offers").hidden = several || !gradient || this.cards.some(({ about }) => about.q === gradient.q);
  }
  progress(found) {
    const el = $("progress");
    el.hidden = !found;
    if (!found) return;
    const [sure, perhaps] = el.querySelectorAll("i");
    sure.style.width = `${100 * found.sure}%`;
    perhaps.style.width = `${100 * (found.perhaps - found.sure)}%`;
    el.lastElementChild.textContent = found.lines.join(" · ");
  }
  section(id, rows, titles, key = JSON.stringify(rows)) {
    const el = $(id);
    el.hidden = !rows?.length;
    if (!rows?.length || el.key === key) return;
    el.key = key;
    table(el.querySelector("div"), titles, rows);
  }
  panel(facts) {
    const el = $("panel"), knobs = facts?.knobs ?? [];
    el.hidden = !knobs.length;
    el.children[1].textContent = facts?.refusal ?? "";
    for (const knob of knobs) {
      const row = this.rows.get(knob.name);
      if (row) row.follow(knob, !!facts.refusal);
      else this.rows.set(knob.name, new Row(this.link, knob, el.children[knob.kind === "command" ? 3 : 2]));
    }
  }
}

const page = new Page();
globalThis.looptap = page;
page.start();
