// The page of `looptap web`: what stands around the charts. The charts are Store and View, as in a notebook; a Model takes
// the place of the notebook's, and a Link the place of its kernel.
{
const $ = (id) => document.getElementById(id);
const MAX_RETRY_MILLISECONDS = 5000;
const CHART_PIXELS = 240;
const MAX_FIRST_CHARTS = 6;
const MAX_WORDS = 9;
const TABLE_MILLISECONDS = 5000;

// ------------------------------------------------------------ the connection

class Link {
  constructor() {
    this.viewer = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    this.waiting = new Map(); // resolve functions by the number of their request
    this.models = new Map(); // by the name of their canvas
    this.count = 0;
    this.delay = 250;
    addEventListener("pagehide", () => this.say({ t: "bye" }));
    addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.again());
    this.open();
  }
  open() {
    clearTimeout(this.timer);
    this.timer = null;
    const address = new URL("socket", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this.socket = new WebSocket(address));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(JSON.stringify({ t: "hello", viewer: this.viewer }));
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.heard(JSON.parse(data)) : this.framed(data));
    socket.onclose = (event) => socket === this.socket && this.closed(event);
  }
  again() {
    if (this.timer) this.open();
  }
  async closed({ code, reason }) {
    for (const settle of this.waiting.values()) settle({ error: "The connection was lost.", lost: true });
    this.waiting.clear();
    page.linked("gone", code === 1013 ? reason : "reconnecting…");
    this.timer = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(MAX_RETRY_MILLISECONDS, 1.6 * this.delay);
    const reply = await fetch("page.css").catch(() => null);
    if (reply?.status !== 403) return;
    clearTimeout(this.timer);
    this.timer = null;
    page.linked("gone", "The server was started again: open the address that it has printed.");
  }
  heard(message) {
    if (message.t === "reply") {
      this.waiting.get(message.id)?.(message);
      this.waiting.delete(message.id);
    } else if (message.t === "hello") {
      this.delay = 250;
      page.greeted(message);
    } else page[message.t]?.(message);
  }
  framed(data) {
    const length = new DataView(data).getUint32(0, true);
    const { canvas, message, sizes } = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
    let at = 4 + length;
    const parts = sizes.map((size) => new Uint8Array(data, (at += size) - size, size));
    this.models.get(canvas)?.act(message, parts);
  }
  say(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
  // Resolves to {value} or {error}.
  ask(t, about) {
    if (this.socket.readyState !== WebSocket.OPEN) return Promise.resolve({ error: "There is no connection at present.", lost: true });
    const id = ++this.count;
    this.say({ t, id, ...about });
    return new Promise((settle) => this.waiting.set(id, settle));
  }
}

// What a Store needs of a notebook's model.
class Model {
  constructor(link, canvas) {
    this.link = link;
    this.canvas = canvas;
    link.models.set(canvas, this);
  }
  get(what) {
    return { height: CHART_PIXELS, identity: this.canvas }[what];
  }
  on(_, act) {
    this.act = act;
  }
  send(message) {
    this.link.say({ t: "canvas", canvas: this.canvas, message });
  }
}

// ------------------------------------------------------------ charts

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

// ------------------------------------------------------------ words under the field

class Words {
  constructor(field, list) {
    [this.field, this.list] = [field, list];
    this.known = [];
    this.found = [];
    this.at = -1;
    field.addEventListener("input", () => this.look());
    field.addEventListener("keydown", (event) => this.pressed(event));
    field.addEventListener("blur", () => setTimeout(() => this.hide(), 150));
  }
  // The beginning of a word before the caret; what follows a dot is an attribute, and not known here.
  get begun() {
    const before = this.field.value.slice(0, this.field.selectionStart);
    return before.match(/(^|[^\w.])([A-Za-z_][\w/]*)$/)?.[2] ?? "";
  }
  look() {
    const begun = this.begun.toLowerCase();
    const starts = this.known.filter(({ word }) => begun && word.toLowerCase().startsWith(begun) && word !== this.begun);
    const within = this.known.filter(({ word }) => begun.length > 1 && word.toLowerCase().indexOf(begun) > 0);
    this.found = [...starts, ...within].slice(0, MAX_WORDS);
    this.choose(-1);
  }
  choose(at) {
    this.at = at;
    this.list.textContent = "";
    this.found.forEach(({ word, kind, meaning }, i) => {
      const item = make(this.list, "li", "", word);
      make(item, "span", "", meaning || kind);
      item.role = "option";
      item.id = `word-${i}`;
      item.ariaSelected = String(i === at);
      item.onpointerdown = (event) => {
        event.preventDefault();
        this.take(i);
      };
    });
    this.list.hidden = !this.found.length;
    this.field.ariaExpanded = String(!this.list.hidden);
    this.field.setAttribute("aria-activedescendant", at < 0 ? "" : `word-${at}`);
  }
  take(i) {
    const { word } = this.found[i], end = this.field.selectionStart, start = end - this.begun.length;
    this.field.setRangeText(word, start, end, "end");
    this.hide();
    this.field.focus();
  }
  hide() {
    this.found = [];
    this.choose(-1);
  }
  pressed(event) {
    if (this.list.hidden) return;
    const { key } = event, count = this.found.length;
    if (key === "ArrowDown") this.choose((this.at + 1) % count);
    else if (key === "ArrowUp") this.choose((this.at <= 0 ? count : this.at) - 1);
    else if (key === "Tab" && !event.shiftKey) this.take(Math.max(0, this.at));
    else if (key === "Enter" && this.at >= 0) this.take(this.at);
    else if (key === "Escape") this.hide();
    else return;
    event.preventDefault();
  }
}

// ------------------------------------------------------------ controls

class Row {
  constructor(link, knob, el) {
    this.link = link;
    this.name = knob.name;
    const command = knob.kind === "command";
    this.el = make(el, "div", command ? "command" : "row");
    if (!command) (this.label = make(this.el, "label", "", knob.label)).title = knob.meaning;
    const side = make(this.el, "span");
    side.title = knob.meaning;
    if (command) this.button(side, knob);
    else this.input(side, knob);
    this.outcome = make(this.el, "span", "outcome");
    this.follow(knob);
  }
  button(side, { name }) {
    this.control = make(side, "button", "", name);
    this.control.onclick = () => this.turn(null);
  }
  input(side, knob) {
    const { kind } = knob, choice = kind === "choice";
    const control = (this.control = make(side, choice ? "select" : "input"));
    control.id = `knob-${this.name}`;
    this.label.htmlFor = control.id;
    if (choice) for (const one of knob.choices) make(control, "option", "", String(one)).value = JSON.stringify(one);
    else control.type = { switch: "checkbox", slider: "range", number: "number" }[kind] ?? "text";
    if (kind === "number") control.step = "any";
    if (kind === "slider") {
      this.log = knob.log;
      const place = (value) => (knob.log ? Math.log10(value) : value);
      control.min = place(knob.low);
      control.max = place(knob.high);
      control.step = knob.log ? "any" : knob.step;
      this.shown = make(side, "output");
      control.oninput = () => (this.shown.textContent = short(this.read(knob), 4));
    }
    control.onchange = () => this.turn(this.read(knob));
  }
  read({ kind, whole, high, low }) {
    const { control } = this;
    if (kind === "switch") return control.checked;
    if (kind === "choice") return JSON.parse(control.value);
    if (kind === "number") return +control.value;
    if (kind !== "slider") return control.value;
    const value = this.log ? Math.min(high, Math.max(low, +(10 ** control.value).toPrecision(3))) : +control.value;
    return whole ? Math.round(value) : value;
  }
  // A question in the place of the outcome.
  sure(question, act) {
    this.asking = true;
    this.outcome.textContent = `${question} `;
    this.outcome.className = "outcome";
    make(this.outcome, "button", "", "Yes").onclick = act;
    make(this.outcome, "button", "", "No").onclick = () => {
      this.asking = false;
      if (this.value !== undefined) this.show(this.value);
      this.say("");
    };
  }
  async turn(value, sure = false) {
    this.asking = false;
    this.say("…");
    const { value: reply, error } = await this.link.ask("turn", { name: this.name, value, sure });
    if (error) this.say(error, true);
    else if (reply.question) this.sure(reply.question, () => this.turn(value, true));
  }
  say(text, failed = false) {
    this.outcome.textContent = this.outcome.title = text;
    this.outcome.className = failed ? "outcome failed" : "outcome";
  }
  show(value) {
    const { control } = this;
    if (control.type === "checkbox") control.checked = value;
    else if (control.tagName === "SELECT") control.value = JSON.stringify(value);
    else if (control.type === "range") {
      control.value = this.log ? Math.log10(value) : value;
      this.shown.textContent = short(value, 4);
    } else control.value = value;
  }
  follow(knob, closed = false) {
    this.control.disabled = closed || !knob.there;
    if (this.asking) return;
    const held = document.activeElement === this.control && this.control.matches(":active, [type=text], [type=number]");
    if (knob.kind !== "command" && knob.settled && !held && (knob.value !== this.value || knob.failed)) this.show(knob.value);
    if (knob.settled) this.value = knob.value;
    if (knob.outcome || !this.outcome.textContent) this.say(knob.outcome, knob.failed);
  }
}

// ------------------------------------------------------------ tables

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
      this.set({ where: $("filter").value.trim(), sort: $("order").value.trim(), down: false });
    };
    $("across").onclick = () => this.set({ across: !this.page.state.across });
    $("only").onclick = () => this.page.choose(this.keys);
    setInterval(() => this.live && document.visibilityState === "visible" && this.show(), TABLE_MILLISECONDS);
  }
  get asked() {
    const { where, sort, down } = this.page.state;
    return { where, sort, down };
  }
  // True while a run of the table may still change.
  get live() {
    const { runs } = this.page.state;
    return runs.length > 1 && this.page.known.some(({ key, state }) => state === "live" && runs.includes(key));
  }
  set(about) {
    Object.assign(this.page.state, about);
    this.page.write();
    return this.show();
  }
  // Begin with the runs of the state.
  begin() {
    const { where, sort } = this.page.state;
    [$("filter").value, $("order").value] = [where, sort];
    this.card?.remove();
    this.card = null;
    this.drawn = "";
    this.el.hidden = this.page.state.runs.length < 2;
    this.show();
  }
  async show() {
    const { runs, sort, down, across } = this.page.state;
    if (runs.length < 2) return;
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
        $("order").value = title;
        this.set({ sort: title, down: title === sort && !down });
      });
    });
    table(this.room, heads, rows.map(({ key, cells, problem }) => [button(cells[0], problem || `Show ${key} alone`, () => this.page.choose([key])), ...cells.slice(1)]));
    titles.forEach((title, i) => title === sort && (this.room.querySelectorAll("th")[i].ariaSort = down ? "descending" : "ascending"));
    this.note.textContent = [`${rows.length} of ${all} runs`, ...without].join(". ");
    $("only").disabled = !rows.length || rows.length === runs.length;
    $("across").ariaPressed = String(!!across);
    await this.lines(across && rows.length, JSON.stringify(rows));
  }
  // Draw the rows as lines across axes, anew if they have changed.
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

// ------------------------------------------------------------ the page

const ago = (started) => {
  const seconds = Math.max(0, Date.now() / 1000 - started);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
};

class Page {
  constructor() {
    this.cards = [];
    this.rows = new Map(); // of the panel, by name
    this.known = []; // all runs
    this.seen = {}; // facts of the run in front
    this.state = this.read();
    this.operate = false;
    this.words = new Words($("query"), $("words"));
    this.table = new RunsTable(this);
    $("tick").onclick = () => this.choose(this.known.filter(({ problem }) => !problem).map(({ key }) => key));
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
        const { q = "", on, window: size, every, name } = JSON.parse(text);
        return { q: String(q), on, window: size, every, name };
      } catch {
        return { q: text };
      }
    };
    return {
      runs: found.getAll("run"), charts: found.has("c") ? found.getAll("c").filter(Boolean).map(chart) : null, x: found.get("x") ?? "",
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
      for (const card of this.cards) if (!card.views.length) card.draw(this.state.runs, this.state.x);
      this.table.begin();
      this.link.ask("watch", { run: this.state.runs[0] });
    } else this.front();
  }
  noted(text) {
    $("note").textContent = text;
    $("note").hidden = !text;
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
      const on = this.state.runs.includes(run.key), item = make(list, "li", on ? "on" : "");
      make(item, "i", `dot ${run.state}`).title = run.problem || run.state || run.kind;
      const button = make(item, "button");
      make(button, "b", "", run.name);
      make(button, "small", "", [run.state || run.kind, run.started && ago(run.started), run.ranks > 1 && `${run.ranks} ranks`, run.host].filter(Boolean).join(" · "));
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
    $("empty").hidden = this.known.length > 0;
    if (!this.known.length) $("empty").textContent = "No run here yet. One is listed as soon as its process has a looptap.Agent.";
  }
  choose(runs) {
    this.state = { ...this.state, runs };
    this.write(true);
    this.front();
  }
  // Show the runs of the state.
  async front() {
    let { runs } = this.state;
    if (!runs.length && this.known.length) {
      runs = this.state.runs = [this.known[0].key];
      this.write();
    }
    if (!runs.length || !this.link || document.body.dataset.link !== "there") return;
    this.chosen = true;
    const turn = (this.turn = {});
    for (const card of this.cards) card.remove();
    this.cards = [];
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
    for (const about of this.state.charts ?? []) this.add(about);
    this.begin(value.first);
    this.blank();
    this.learn();
  }
  add(about) {
    const card = new Card(this.link, about);
    this.cards.push(card);
    card.draw(this.state.runs, this.state.x);
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
    $("empty").hidden = this.cards.length > 0;
    if (!this.cards.length)
      $("empty").textContent = this.operate
        ? "Type a query above, such as: step, loss"
        : "This run shows no stream. An exported one is shown: run.export('loss'). looptap web --operate shows all.";
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
    const about = { q: $("query").value.trim(), on: $("on").value.trim(), window: $("window").value.trim() };
    this.wrong("");
    if (!about.q) return this.wrong("Type the name of a stream, or a query.");
    if (await this.draw(about)) $("query").value = "";
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
    for (const card of this.cards) card.draw(this.state.runs, x);
  }
  // ------------------------------------------------------------ the run in front
  facts({ facts: news }) {
    const facts = (this.seen = news.key === this.seen.key ? { ...this.seen, ...news } : news);
    const several = this.state.runs.length > 1, name = several ? `${this.state.runs.length} runs compared` : facts.name;
    document.title = `${name} – looptap`;
    $("name").textContent = name;
    const state = facts.reason ? `${facts.state}: ${facts.reason}` : facts.state;
    $("where").textContent = $("where").title = several ? `in front: ${facts.name}, ${state}` : [state, facts.where].filter(Boolean).join(" · ");
    const rates = (facts.events ?? []).filter(({ rate }) => rate).map(({ name, rate }) => `${short(rate, 3)} ${name}/s`);
    $("moving").textContent = several ? "" : [facts.moving, ...rates].filter(Boolean).join(" · ");
    $("problem").textContent = (facts.problems ?? []).filter(Boolean).join("\n");
    $("problem").hidden = !$("problem").textContent;
    this.progress(several ? null : facts.progress);
    $("events").replaceChildren(...(facts.events ?? []).map(({ name }) => Object.assign(document.createElement("option"), { value: name })));
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
    if (facts.first?.length && facts.key === this.state.runs[0] && this.cards.length < MAX_FIRST_CHARTS) {
      this.begin(facts.first);
      this.blank();
    }
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
}
