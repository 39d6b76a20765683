// The charts of a file, which has no kernel.
for (const { height, message, buffers } of JSON.parse(document.getElementById("data").textContent)) {
  const model = { get: (name) => ({ height })[name], on() {}, send() {} };
  const store = new Store(model);
  store.still = true;
  store.apply({ ...message, time: 0 }, buffers.map((part) => Uint8Array.from(atob(part), (c) => c.charCodeAt(0))));
  new View(store, make(document.getElementById("charts"), "div"));
  store.draws = 1;
}
globalThis.looptap = { inliers, tickLabels };
