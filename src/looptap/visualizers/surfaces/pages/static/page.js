// The charts of a file, which has no kernel. It holds the picture over each x, and what those have in common once.
const { charts, parts } = JSON.parse(document.getElementById("data").textContent);
const decoded = parts.map((part) => Uint8Array.from(atob(part), (c) => c.charCodeAt(0)));
for (const { height, over } of charts) {
  const show = (x) => store.apply({ ...over[x].message, time: 0 }, over[x].buffers.map((i) => decoded[i]));
  const send = ({ t, x }) => {
    if (t !== "x" || !over[x]) return;
    show(x);
    store.draw();
  };
  const store = new Store({ get: (name) => ({ height })[name], on() {}, send });
  const xs = Object.keys(over);
  [store.still, store.turns] = [true, xs.length > 1];
  show(xs[0]);
  new View(store, make(document.getElementById("charts"), "div"));
  store.draws = 1;
}
globalThis.looptap = { inliers, tickLabels };
