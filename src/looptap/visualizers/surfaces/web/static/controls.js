// Controls and commands, with their outcomes and questions.
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
