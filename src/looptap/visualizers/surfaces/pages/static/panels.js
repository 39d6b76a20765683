// What has no axes in the plane: space, to be turned with the mouse; images, shares, tables and texts.

class Sheet {
  constructor(view, el) {
    this.view = view;
    this.store = view.store;
    this.el = el;
  }
  destroy() {}
  resize() {}
}

// A canvas of this size on the page, and its context.
const sheet = (owner, width, height) => {
  const canvas = (owner.canvas ??= make(owner.el, "canvas"));
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  return ctx;
};

const AXIS_LETTERS = 18; // of the title of an axis in space
const CORNERS = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => [i & 1 ? 1 : -1, i & 2 ? 1 : -1, i & 4 ? 1 : -1]);

class Space extends Sheet {
  constructor(view, el) {
    super(view, el);
    this.reset();
    el.style.cursor = "grab";
    el.style.touchAction = "none";
    el.onpointerdown = (event) => el.setPointerCapture(event.pointerId);
    el.onpointermove = ({ buttons, movementX, movementY }) => {
      if (!buttons) return;
      this.turn = [this.turn[0] + movementX / 120, Math.max(-1.5, Math.min(1.5, this.turn[1] + movementY / 120))];
      this.view.draw();
    };
  }
  reset() {
    this.turn = [-0.9, 0.45];
  }
  draw(panel, layout, width) {
    const { store, view } = this, ratio = devicePixelRatio, ctx = sheet(this, width, view.height);
    const marks = panel.marks.filter((mark) => !mark.name || !view.hides(mark.name));
    const limits = ["x", "y", "z"].map((name) => {
      const ends = marks.map((mark) => extent(store.column(mark[name])));
      const low = Math.min(...ends.map(([a]) => a)), high = Math.max(...ends.map(([, b]) => b));
      return low < high ? [low, high] : low === high ? [low - 0.5, high + 0.5] : [0, 1];
    });
    const [a, b] = this.turn, sin = Math.sin, cos = Math.cos;
    const size = Math.min(ctx.canvas.width, ctx.canvas.height) * 0.29;
    const place = (x, y, z) => {
      const across = x * cos(a) - y * sin(a), deep = x * sin(a) + y * cos(a);
      return [ctx.canvas.width / 2 + size * across, ctx.canvas.height / 2 - size * (z * cos(b) - deep * sin(b))];
    };
    const unit = (value, [low, high]) => (2 * (value - low)) / (high - low) - 1;
    const at = (mark, i) => place(...["x", "y", "z"].map((name, k) => unit(store.column(mark[name])[i], limits[k])));
    const { ink } = view.theme;
    ctx.strokeStyle = "#8888";
    ctx.lineWidth = ratio;
    CORNERS.forEach((corner, i) => {
      for (const bit of [1, 2, 4]) {
        if (i & bit) continue;
        ctx.beginPath();
        ctx.moveTo(...place(...corner));
        ctx.lineTo(...place(...CORNERS[i | bit]));
        ctx.stroke();
      }
    });
    for (const mark of marks) {
      const count = store.column(mark.x).length;
      ctx.globalAlpha = mark.opacity ?? 1;
      ctx.strokeStyle = ctx.fillStyle = view.theme.of(mark.color);
      if (mark.m === "points") {
        const values = mark.values === null ? null : store.column(mark.values), color = values && scaled(values);
        for (let i = 0; i < count; i++) {
          if (color) ctx.fillStyle = `rgb(${color(values[i])})`;
          const [px, py] = at(mark, i);
          ctx.fillRect(px - 2 * ratio, py - 2 * ratio, 4 * ratio, 4 * ratio);
        }
        continue;
      }
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash((DASHES[mark.dash] ?? []).map((n) => n * ratio));
      ctx.beginPath();
      for (let i = 0, pen = false; i < count; i++) {
        const [px, py] = at(mark, i);
        if (px - px !== 0 || py - py !== 0) pen = false;
        else {
          if (!pen) ctx.moveTo(px, py);
          ctx.lineTo(px, py);
          pen = true;
        }
      }
      ctx.stroke();
      ctx.setLineDash([]);
    }
    // The words lie over the lines, with a rim, and inside the canvas; none lies on one that was there before.
    const taken = [], tall = 13 * ratio, gap = 5 * ratio;
    ctx.globalAlpha = 1;
    ctx.fillStyle = ink;
    ctx.strokeStyle = view.theme.ground;
    ctx.lineWidth = 3 * ratio;
    ctx.lineJoin = "round";
    const says = (text, spots) => {
      const wide = ctx.measureText(text).width;
      const boxes = spots.map(([middle, top, edge = 0]) => {
        const left = Math.max(0, Math.min(ctx.canvas.width - wide, middle + (edge * wide) / 2 - wide / 2));
        return [left, top, left + wide, top + tall];
      });
      const free = boxes.find(([l, t, r, b]) => !taken.some(([l2, t2, r2, b2]) => l < r2 && l2 < r && t < b2 && t2 < b));
      if (!free) return;
      taken.push(free);
      ctx.strokeText(text, free[0], free[3] - 3 * ratio);
      ctx.fillText(text, free[0], free[3] - 3 * ratio);
    };
    [layout.x, layout.y, layout.z].forEach((axis, k) => {
      const spot = (along) => {
        const [px, py] = place(...[0, 1, 2].map((i) => (i === k ? along : i === 1 && !k ? 1.15 : -1.15)));
        return [[px, py - tall / 2], [px, py + tall / 2], [px, py - 1.5 * tall]];
      };
      says(fitted(axis?.title ?? "", AXIS_LETTERS), spot(0));
      says(short(limits[k][0], 3), spot(-0.78));
      says(short(limits[k][1], 3), spot(0.78));
    });
    // The newest notes go first.
    for (const mark of marks)
      for (const [index, text] of [...(mark.notes ?? [])].reverse()) {
        const [px, py] = at(mark, index);
        says(text, [[px + gap, py - tall / 2, 1], [px, py - tall - gap], [px, py + gap], [px - gap, py - tall / 2, -1]]);
      }
  }
}

// A canvas with the pixels of an image.
const pictured = (pixels, [height, width, channels]) => {
  const canvas = document.createElement("canvas"), image = new ImageData(width, height);
  for (let p = 0, q = 0; p < image.data.length; p += 4, q += channels) {
    image.data[p] = pixels[q];
    image.data[p + 1] = pixels[q + 1];
    image.data[p + 2] = pixels[q + 2];
    image.data[p + 3] = channels === 4 ? pixels[q + 3] : 255;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
};

class Pictures extends Sheet {
  draw(panel) {
    const [mark] = panel.marks, count = mark.images.length;
    const columns = mark.columns || Math.ceil(Math.sqrt(count));
    const box = make(null, "div", "images");
    box.style.gridTemplateColumns = `repeat(${Math.min(columns, count) || 1}, auto)`;
    mark.images.forEach(([height, width, channels], i) => {
      const figure = make(box, "figure");
      const canvas = pictured(this.store.column(`${mark.key}.image${i}`), [height, width, channels]);
      figure.append(canvas);
      const zoom = Math.max(1, Math.floor((count > 1 ? 96 : 256) / Math.max(width, height)));
      canvas.style.width = `${Math.min(800, width * zoom)}px`;
      make(figure, "figcaption", "", mark.captions[i] ?? "");
      if (!i) this.canvas = canvas;
    });
    this.el.replaceChildren(box);
  }
}

class Shares extends Sheet {
  draw(panel, layout, width) {
    const [mark] = panel.marks, shares = this.store.column(mark.shares), ctx = sheet(this, width, this.view.height);
    const ratio = devicePixelRatio, size = ctx.canvas.height * 0.42, { theme } = this.view;
    let angle = -Math.PI / 2;
    shares.forEach((share, i) => {
      const next = angle + share * 2 * Math.PI, middle = ctx.canvas.height / 2;
      ctx.fillStyle = theme.of(COLORS[i % COLORS.length]);
      ctx.beginPath();
      ctx.moveTo(middle, middle);
      ctx.arc(middle, middle, size, angle, next);
      ctx.fill();
      const y = (16 + 16 * i) * ratio;
      ctx.fillRect(2 * middle, y - 9 * ratio, 10 * ratio, 10 * ratio);
      ctx.fillStyle = theme.ink;
      ctx.fillText(`${mark.labels[i]}  ${(100 * share).toFixed(1)}%`, 2 * middle + 16 * ratio, y);
      angle = next;
    });
  }
}

class Rows extends Sheet {
  draw(panel) {
    const [mark] = panel.marks, table = make(null, "table");
    for (const [tag, cells] of [["th", mark.titles], ...mark.rows.map((row) => ["td", row])]) {
      const row = make(table, "tr");
      for (const cell of cells) make(row, tag, "", cell);
    }
    this.el.replaceChildren(table);
  }
}

class Words extends Sheet {
  draw(panel) {
    const box = (this.box ??= make(this.el, "pre"));
    const down = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    box.textContent = panel.marks.flatMap((mark) => mark.lines).join("\n");
    if (down) box.scrollTop = box.scrollHeight;
  }
}

const PANELS = { plane: Plane, grid: Plane, space: Space, images: Pictures, pie: Shares, table: Rows, text: Words };
