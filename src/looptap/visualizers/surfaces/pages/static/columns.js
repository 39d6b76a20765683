// What a page knows of one chart: columns of numbers that grow at the end and slide, and the layout that names them.

const bytes = (part) =>
  part instanceof ArrayBuffer ? new Uint8Array(part) : new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
const float64 = (part) => new Float64Array(bytes(part).slice().buffer); // a copy is aligned, and ours

// A window over the newest `most` numbers. `sorted` says that they never fall: NaN counts as falling.
class Column {
  constructor() {
    this.generation = 0;
    this.clear(0);
  }
  clear(most) {
    this.most = most;
    this.generation += 1;
    this.count = 0; // of all numbers since
    this.room = new Float64Array(0);
    this.start = this.end = 0;
    this.sorted = true;
    this.view = this.room;
  }
  append(numbers) {
    const last = this.end > this.start ? this.room[this.end - 1] : -Infinity;
    for (let i = 0, before = last; this.sorted && i < numbers.length; before = numbers[i++])
      if (!(numbers[i] >= before)) this.sorted = false;
    this.count += numbers.length;
    if (numbers.length > this.most) numbers = numbers.subarray(numbers.length - this.most);
    const kept = Math.min(this.end - this.start, this.most - numbers.length);
    if (this.end + numbers.length > this.room.length) {
      const old = this.room.subarray(this.end - kept, this.end);
      const size = Math.max(1024, 2 * (kept + numbers.length));
      const room = size > this.room.length || size < this.room.length / 8 ? new Float64Array(size) : this.room;
      room.set(old, 0);
      this.room = room;
      this.end = kept;
    }
    this.room.set(numbers, this.end);
    this.end += numbers.length;
    this.start = this.end - numbers.length - kept;
    this.view = this.room.subarray(this.start, this.end);
  }
}

const NONE = new Float64Array(0);
const PAGE = Math.random().toString(36).slice(2);

// One per chart and page: takes frames in, tells the kernel what it has taken in, and has its views drawn.
class Store {
  constructor(model) {
    this.model = model;
    this.columns = new Map();
    this.smoothers = new Map(); // by column and weight
    this.layout = null;
    this.views = new Set();
    this.frame = 0; // the number of the newest frame
    this.synced = false; // whether no frame is missing since the last full one
    this.paused = false;
    this.asked = 0;
    this.time = 0;
    this.draws = 0;
    this.lags = []; // seconds between the making of a frame and its picture, of the newest 2,000
    this.waiting = this.owing = null;
    this.queue = []; // frames that have arrived and are not drawn
    model.on("msg:custom", (message, buffers) => this.take(message, buffers));
    this.ask();
  }
  ask() {
    this.asked = performance.now();
    this.left = false;
    this.send({ t: "ready", page: PAGE });
  }
  leave() {
    this.left = true;
    this.send({ t: "left", page: PAGE });
  }
  // A timer may fire after the notebook has closed and its kernel is gone: then the comm is closed, and that is all.
  send(message) {
    try {
      this.model.send(message);
    } catch (error) {
      console.debug("looptap: not sent, the kernel is gone", error);
    }
  }
  take(message, buffers) {
    if (message.t !== "frame" || this.left) return;
    const next = message.n === this.frame + 1;
    this.frame = message.n;
    if (!message.full && !(this.synced && next) && !this.paused) {
      this.synced = false;
      if (performance.now() - this.asked > 500) this.ask();
    }
    if (this.paused) this.synced = false;
    else if (message.full || this.synced) {
      this.synced = true;
      this.queue.push([message, buffers]);
    }
    this.later(message.n, message.ask);
  }
  // Frames arrive in pairs where a network holds small ones back: each has its own frame of the screen. No more than
  // one is left waiting: as many come as are shown, so whatever once waits would do so for good, and age the picture.
  show() {
    const count = Math.max(1, this.queue.length - 1);
    for (const [message, buffers] of this.queue.splice(0, count)) this.apply(message, buffers);
    if (this.dirty) this.draw();
  }
  apply(message, buffers) {
    if (message.layout) {
      this.layout = message.layout;
      for (const view of this.views) view.changed = true;
    }
    message.data.forEach(([key, reset, most, pixels], i) => {
      if (pixels) return this.columns.set(key, { view: bytes(buffers[i]), sorted: false });
      let column = this.columns.get(key);
      if (!column) this.columns.set(key, (column = new Column()));
      if (reset) column.clear(most);
      column.append(float64(buffers[i]));
    });
    const living = new Set(message.data.map(([key]) => key)); // each frame names all columns that it draws
    for (const key of this.columns.keys()) {
      if (living.has(key)) continue;
      this.columns.delete(key);
      this.smoothers.clear(); // a column of the same key may come again
    }
    this.time = message.time;
    this.dirty = true;
  }
  column(key) {
    return this.columns.get(key)?.view ?? NONE;
  }
  // The moving average of a column.
  smoothed(key, weight) {
    const column = this.columns.get(key);
    if (!(column instanceof Column)) return NONE;
    const id = `${key} ${weight}`;
    if (!this.smoothers.has(id)) {
      if (this.smoothers.size > 300) this.smoothers.clear();
      this.smoothers.set(id, new Smoother(weight));
    }
    return this.smoothers.get(id).of(column);
  }
  sorted(key) {
    return this.columns.get(key)?.sorted ?? true;
  }
  // Draw at the next frame of the screen, then acknowledge: a screen that is slow, or not looked at, gets less.
  later(n, ask) {
    this.newest = n;
    this.asks ||= ask;
    this.arrived = performance.now();
    const shown = document.visibilityState === "visible" && [...this.views].some((view) => view.visible);
    this.waiting ??= setTimeout(() => this.taken(false), shown ? 500 : 0);
    if (shown && !this.ticking) this.tick();
  }
  // Keep asking for frames of the screen for a while: a repeated request comes later.
  tick() {
    this.ticking = true;
    requestAnimationFrame(() => {
      this.show();
      if (this.waiting) this.taken(true);
      if (this.queue.length || performance.now() - this.arrived < 250) this.tick();
      else this.ticking = false;
    });
  }
  taken(shown) {
    clearTimeout(this.waiting);
    this.waiting = null;
    while (!shown && this.queue.length) this.show();
    this.acknowledge(!shown);
  }
  // Where the kernel asks for it, or else a second later: what is sent to the kernel costs it more than what it sends.
  acknowledge(hidden) {
    const send = () => {
      clearTimeout(this.owing);
      this.owing = null;
      this.asks = false;
      this.hid = hidden;
      this.send({ t: "ack", page: PAGE, n: this.newest, hidden });
    };
    if (this.asks || hidden !== this.hid) send();
    else this.owing ??= setTimeout(send, 1000);
  }
  draw() {
    this.dirty = false;
    for (const view of this.views) view.draw();
    this.draws += 1;
    this.lags.push(Date.now() / 1000 - this.time);
    if (this.lags.length > 2000) this.lags.splice(0, 1000);
  }
  pause(on) {
    this.paused = on;
    for (const view of this.views) view.tell();
    if (!on) this.ask();
  }
}
