// The words that complete what is typed.
const MAX_WORDS = 9;

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
