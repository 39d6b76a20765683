// A picture as SVG: what is painted on a canvas is written down instead.

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const fixed = (number) => +number.toFixed(2);

// As much of a canvas' context as paint.js uses.
class SvgContext {
  constructor() {
    this.parts = [];
    this.defs = [];
    this.stack = [];
    this.state = {
      fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "11px system-ui", textAlign: "left",
      textBaseline: "alphabetic", dash: [], clipped: 0, lineJoin: "miter", lineCap: "butt",
    };
    this.path = "";
    this.ruler = document.createElement("canvas").getContext("2d");
    for (const key of Object.keys(this.state))
      if (key !== "dash" && key !== "clipped")
        Object.defineProperty(this, key, { get: () => this.state[key], set: (value) => (this.state[key] = value) });
  }
  save() {
    this.stack.push({ ...this.state });
  }
  restore() {
    this.state = this.stack.pop();
  }
  setLineDash(dash) {
    this.state.dash = dash;
  }
  getLineDash() {
    return this.state.dash;
  }
  beginPath() {
    this.path = "";
  }
  moveTo(x, y) {
    this.path += `M${fixed(x)} ${fixed(y)}`;
  }
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${fixed(x)} ${fixed(y)}`;
  }
  rect(x, y, width, height) {
    this.path += `M${fixed(x)} ${fixed(y)}h${fixed(width)}v${fixed(height)}h${fixed(-width)}z`;
  }
  arc(x, y, radius, from, to) {
    if (to - from >= 2 * Math.PI) this.path += `M${fixed(x - radius)} ${fixed(y)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0z`;
  }
  clip() {
    this.defs.push(`<clipPath id="looptap-clip-${this.defs.length}"><path d="${this.path}"/></clipPath>`);
    this.state.clipped = this.defs.length;
  }
  add(tag, about, content = null) {
    const { clipped, globalAlpha } = this.state;
    const clip = clipped ? ` clip-path="url(#looptap-clip-${clipped - 1})"` : "", opacity = globalAlpha < 1 ? ` opacity="${fixed(globalAlpha)}"` : "";
    this.parts.push(`<${tag} ${about}${clip}${opacity}${content === null ? "/>" : `>${content}</${tag}>`}`);
  }
  stroke() {
    const { strokeStyle, lineWidth, dash, lineJoin } = this.state;
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.add("path", `d="${this.path}" fill="none" stroke="${strokeStyle}" stroke-width="${lineWidth}" stroke-linejoin="${lineJoin}"${dashes}`);
  }
  fill() {
    this.add("path", `d="${this.path}" fill="${this.state.fillStyle}"`);
  }
  fillRect(x, y, width, height) {
    this.add("rect", `x="${fixed(x)}" y="${fixed(y)}" width="${fixed(width)}" height="${fixed(height)}" fill="${this.state.fillStyle}"`);
  }
  measureText(text) {
    this.ruler.font = this.state.font;
    return this.ruler.measureText(text);
  }
  fillText(text, x, y) {
    this.addText(text, x, y, `fill="${this.state.fillStyle}"`);
  }
  strokeText(text, x, y) {
    const { strokeStyle, lineWidth, lineJoin } = this.state;
    this.addText(text, x, y, `fill="none" stroke="${strokeStyle}" stroke-width="${lineWidth}" stroke-linejoin="${lineJoin}" aria-hidden="true"`);
  }
  addText(text, x, y, paint) {
    const { font, textAlign, textBaseline } = this.state, size = parseFloat(font);
    const anchor = { center: "middle", right: "end", end: "end" }[textAlign] ?? "start", down = { middle: 0.35, top: 0.8 }[textBaseline] ?? 0;
    this.add("text", `x="${fixed(x)}" y="${fixed(y + down * size)}" ${paint} text-anchor="${anchor}" font-family="system-ui, sans-serif" font-size="${size}"${this.turned ?? ""}`, escaped(text));
  }
  drawImage(canvas, x, y, width, height) {
    const at = `x="${fixed(x)}" y="${fixed(y)}" width="${fixed(width)}" height="${fixed(height)}"`;
    const source = canvas instanceof OffscreenCanvas ? copied(canvas) : canvas;
    this.add("image", `${at} preserveAspectRatio="none" style="image-rendering:pixelated" href="${source.toDataURL()}"`);
  }
}

const copied = (canvas) => {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
};

// The axes that uPlot has drawn: its ticks with their texts, and the titles.
const axesOf = (ctx, plane) => {
  const { uplot: u, ink } = plane, ratio = devicePixelRatio, { left, top, width, height } = u.bbox;
  ctx.fillStyle = ctx.strokeStyle = ink;
  ctx.lineWidth = ratio;
  ctx.font = `${12 * ratio}px system-ui`;
  u.axes.forEach((axis) => {
    const { side } = axis, across = side % 2 === 0, edge = side === 1 ? left + width : left;
    (axis._splits ?? []).forEach((split, i) => {
      const text = axis._values?.[i], at = u.valToPos(split, axis.scale, true);
      if (text === null || text === undefined || text === "") return;
      if (axis.grid.show) {
        ctx.globalAlpha = 0.2;
        ctx.beginPath();
        ctx.moveTo(across ? at : left, across ? top : at);
        ctx.lineTo(across ? at : left + width, across ? top + height : at);
        ctx.stroke();
        ctx.globalAlpha = 1;
      }
      ctx.textAlign = across ? "center" : side === 1 ? "left" : "right";
      ctx.textBaseline = side === 0 ? "alphabetic" : across ? "top" : "middle";
      String(text).split("\n").forEach((line, row) =>
        ctx.fillText(line, across ? at : edge + (side === 1 ? 8 : -8) * ratio, side === 0 ? top - 12 * ratio : across ? top + height + (8 + 14 * row) * ratio : at),
      );
    });
    if (!axis.label) return;
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    const x = across ? left + width / 2 : side === 1 ? left + width + 62 * ratio : 4 * ratio, y = side === 0 ? top - 46 * ratio : across ? top + height + 26 * ratio : top + height / 2;
    if (!across) ctx.turned = ` transform="rotate(${side === 1 ? 90 : -90} ${fixed(x)} ${fixed(y)})"`;
    ctx.fillText(axis.label, x, y);
    ctx.turned = "";
  });
};

const svgOf = (view) => {
  const ratio = devicePixelRatio, head = 22 * ratio, groups = [], defs = [];
  let left = 0, tall = 0;
  const top = new SvgContext();
  heading(view, top, ratio);
  for (const panel of view.panels) {
    if (!panel.canvas) continue;
    const { width, height } = panel.canvas, ctx = new SvgContext();
    if (panel.uplot) {
      axesOf(ctx, panel);
      panel.paint(panel.uplot, ctx, ratio);
    } else ctx.drawImage(panel.canvas, 0, 0, width, height);
    const own = (text) => text.replaceAll(/looptap-clip-(\d+)/g, `looptap-clip-${groups.length}-$1`);
    defs.push(...ctx.defs.map(own));
    groups.push(`<g transform="translate(${left} ${head})">${own(ctx.parts.join(""))}</g>`);
    left += width;
    tall = Math.max(tall, height);
  }
  const ground = `<rect width="${left}" height="${tall + head}" fill="${view.theme.ground}"/>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${left} ${tall + head}" width="${left / ratio}" height="${(tall + head) / ratio}"><defs>${defs.join("")}</defs>${ground}${top.parts.join("")}${groups.join("")}</svg>`;
};
