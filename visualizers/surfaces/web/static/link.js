// The connection of the page to its server: messages, and frames for the models of charts.
const $ = (id) => document.getElementById(id);
const MAX_RETRY_MILLISECONDS = 5000;
const CHART_PIXELS = 240;

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
