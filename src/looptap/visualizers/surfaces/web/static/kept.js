// What this browser keeps: each tab the token of its server, all tabs what was drawn here. It may refuse to keep anything.
const MAX_DRAWN_CHARACTERS = 500_000;
const HOME = new URL(".", document.baseURI).pathname; // pages behind a proxy share their origin

const keep = (storage, name, text) => {
  try {
    globalThis[storage].setItem(`looptap ${HOME} ${name}`, text);
  } catch {}
};
const kept = (storage, name) => {
  try {
    return globalThis[storage].getItem(`looptap ${HOME} ${name}`) ?? "";
  } catch {
    return "";
  }
};

// What this browser has drawn of each run at a click: an address may ask for that again, and for nothing else.
class Drawn {
  get all() {
    try {
      return [JSON.parse(kept("localStorage", "drawn"))].flat().map(String);
    } catch {
      return [];
    }
  }
  has(runs, what) {
    const all = new Set(this.all);
    return runs.every((run) => all.has(JSON.stringify([run, ...what])));
  }
  add(runs, what) {
    const added = runs.map((run) => JSON.stringify([run, ...what]));
    const all = [...this.all.filter((one) => !added.includes(one)), ...added];
    let size = 0;
    const first = all.findLastIndex((one) => (size += one.length) > MAX_DRAWN_CHARACTERS);
    keep("localStorage", "drawn", JSON.stringify(all.slice(first + 1)));
  }
}
