// The connection of the page to its server: messages, and frames for the models of charts.
const $ = (id) => document.getElementById(id);
const MAX_RETRY_MILLISECONDS = 5000;
const NOT_THE_TOKEN = 4403;
const CHART_PIXELS = 240;

class Link {
  constructor() {
    this.viewer = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    this.waiting = new Map(); // resolve functions by the number of their request
    this.models = new Map(); // by the name of their canvas
    this.count = 0;
    this.delay = 250;
    this.token = new URLSearchParams(location.search).get("token") || kept("sessionStorage", "token");
    if (location.search) history.replaceState(null, "", HOME + location.hash); // a token is no part of a bookmark
    addEventListener("pagehide", () => this.say({ t: "bye" }));
    addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.again());
    this.open();
  }
  open() {
    clearTimeout(this.timer);
    this.timer = null;
    keep("sessionStorage", "token", this.token);
    if (!this.token) return page.locked("This page needs the token of its server: open the whole address that looptap web has printed, or paste it here.");
    const address = new URL("socket", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this.socket = new WebSocket(address));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(JSON.stringify({ t: "hello", viewer: this.viewer, token: this.token }));
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.heard(JSON.parse(data)) : this.framed(data));
    socket.onclose = (event) => socket === this.socket && this.closed(event);
  }
  again() {
    if (this.timer) this.open();
  }
  // Continue with a token, or with the address that contains it.
  unlock(text) {
    this.token = text.match(/[?&]token=([\w-]+)/)?.[1] ?? text.trim();
    this.open();
  }
  closed({ code, reason }) {
    for (const settle of this.waiting.values()) settle({ error: "The connection was lost.", lost: true });
    this.waiting.clear();
    if (code === NOT_THE_TOKEN) {
      const again = page.chosen ? "The server was started again" : "This is not the token of the server that runs here";
      this.token = "";
      keep("sessionStorage", "token", "");
      return page.locked(`${again}: open the address that it has printed, or paste it here.`);
    }
    page.linked("gone", code === 1013 ? reason : "reconnecting…");
    this.timer = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(MAX_RETRY_MILLISECONDS, 1.6 * this.delay);
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
