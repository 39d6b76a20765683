// The marks of a picture on a canvas. Lines are reduced to what a column of pixels can show: first, lowest, highest, last.

const make = (parent, tag, name = "", text = "") => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text; // never as HTML: all texts come from the job
  parent?.append(node);
  return node;
};

// The page's ink, read once a drawing, and whether the ground is dark.
const themeOf = (el) => {
  const ink = getComputedStyle(el).color, [r, g, b] = (ink.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
  const dark = 0.3 * r + 0.6 * g + 0.1 * b > 127;
  return { ink, dark, ground: dark ? "#111111" : "#ffffff", of: (color) => (dark && DARK_FORMS[color]) || color };
};

const DASHES = { solid: [], dash: [8, 5], dot: [2, 4], dashdot: [8, 4, 2, 4] };

// The first index of `numbers` (sorted) that is not below `value`.
const lower = (numbers, value) => {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
};

const upper = (numbers, value) => {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
};

// The indices of what lies between two values of x, and one more on either side.
const span = (xs, sorted, from, to) =>
  sorted ? [Math.max(0, lower(xs, from) - 1), Math.min(xs.length, lower(xs, to) + 2)] : [0, xs.length];

const extent = (numbers, from = 0, to = numbers.length, log = false) => {
  let low = Infinity, high = -Infinity;
  for (let i = from; i < to; i++) {
    const value = numbers[i];
    if (value < low && value > (log ? 0 : -Infinity)) low = value;
    if (value > high && value < Infinity) high = value;
  }
  return [low, high];
};

// A path through all points; NaN and infinity break it. A point between two breaks is a dot.
const trace = (path, xs, ys, [from, to], X, Y) => {
  let pen = false;
  for (let i = from; i < to; i++) {
    const px = X(xs[i]), py = Y(ys[i]);
    if (px - px !== 0 || py - py !== 0) {
      pen = false;
      continue;
    }
    if (!pen) path.moveTo(px, py);
    path.lineTo(px, py);
    pen = true;
  }
};

// The same for many points per column of pixels, x rising: a bar for each column, from its lowest to its highest point
// and to the end of the column before. Bars on whole pixels are drawn ten times as fast as a path.
// Of a dashed line some columns are left out.
const columnwise = (ctx, xs, ys, [from, to], X, Y, thick, dash) => {
  const wide = Math.max(1, Math.round(thick / 1.5)), period = dash.reduce((sum, n) => sum + n, 0);
  const gap = (at) => {
    let rest = at % period, i = 0;
    while (rest >= dash[i]) rest -= dash[i++];
    return i % 2 === 1;
  };
  let column = NaN, low = 0, high = 0, last = NaN;
  const flush = () => {
    if (column !== column || (period && gap(column))) return;
    const top = Math.round(Math.min(Y(high), Y(low)) - thick / 2), bottom = Math.round(Math.max(Y(low), Y(high)) + thick / 2);
    ctx.fillRect(column, top, wide, bottom - top);
  };
  for (let i = from; i < to; i++) {
    const y = ys[i];
    if (!(y < Infinity && y > -Infinity)) {
      flush();
      column = last = NaN;
      continue;
    }
    const px = X(xs[i]) | 0;
    if (px !== column) {
      flush();
      if (last === last && px - column > 1) {
        ctx.beginPath();
        ctx.moveTo(column, Y(last));
        ctx.lineTo(px, Y(y));
        ctx.stroke();
        last = y;
      }
      low = last < y ? last : y;
      high = last > y ? last : y;
      column = px;
    } else if (y < low) low = y;
    else if (y > high) high = y;
    last = y;
  }
  flush();
};

// The colours of a matrix: blue where its numbers are written into the cells, as on all surfaces.
const stopsOf = (mark) => (mark.written ? BLUES : VIRIDIS);
const shade = (stops, share) => {
  const at = Math.min(0.99999, Math.max(0, share)) * (stops.length - 1), i = at | 0, f = at - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
};
const scaled = (numbers, stops = VIRIDIS) => {
  const [low, high] = extent(numbers);
  return (value) => shade(stops, high > low ? (value - low) / (high - low) : 0.5);
};

const short = (value, digits = 5) => {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en");
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(Math.min(3, digits)) : String(+value.toPrecision(digits));
};

// A number in a cell, as layouts.written has it.
const written = (value) => {
  if (value !== value) return "";
  return Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : short(value, 3);
};

// Where a text at a point begins, and its base line: over or under all of the line that is below or above it, or moved
// beside the point, where that is nearest. At an edge it is moved inside, onto the line only if there is no other place.
// null where the point is not seen, or all places meet what is `taken`. The kernel does the same for its pictures.
const BESIDE = [[0, 0], [1, 0], [0.5, 0], [0, 1], [1, -1]];
const beside = (xs, ys, sorted, index, wide, tall, at, taken) => {
  const px = at.X(xs[index]), py = at.Y(ys[index]), gap = 0.4 * tall, end = at.X(at.x1), begin = at.X(at.x0);
  const value = (pixel) => at.x0 + ((at.x1 - at.x0) * (pixel - begin)) / (end - begin);
  let best = null, spot = null, cost = Infinity;
  if (!(begin <= px && px <= end && at.top <= py && py <= at.bottom)) return null;
  for (const [share, moved] of BESIDE) {
    const wanted = px - share * wide, from = Math.max(begin, Math.min(end - wide, wanted + 2 * gap * moved)), to = from + wide;
    let high = moved ? Infinity : py, low = moved ? -Infinity : py, before = null;
    const [first, last] = sorted && !at.logx ? span(xs, true, value(from), value(to)) : [0, xs.length];
    for (let i = first; i < last; i++) {
      const x = at.X(xs[i]), y = at.Y(ys[i]), known = x - x === 0 && y - y === 0;
      if (known && before && Math.max(before[0], x) >= from && Math.min(before[0], x) <= to) {
        const [u, v] = before;
        for (const edge of [Math.max(from, Math.min(x, u)), Math.min(to, Math.max(x, u))]) {
          const height = u === x ? y : v + ((edge - u) / (x - u)) * (y - v);
          high = Math.min(high, height);
          low = Math.max(low, height);
        }
      }
      before = known ? [x, y] : null;
    }
    const above = Math.min(high - gap, py + tall / 2), below = Math.max(low + gap, py - tall / 2) + tall;
    for (const [off, more] of [[above, 0], [below, gap]]) {
      const foot = Math.max(at.top + tall, Math.min(at.bottom, off));
      const meets = taken.some(([a, b, c, d]) => a < to && from < c && b < foot && foot - tall < d);
      const price = Math.abs(foot - tall / 2 - py) + Math.abs(from - wanted) + more + (foot === off ? 0 : 1e6);
      if (meets || !(price < cost)) continue;
      cost = price;
      spot = [from, foot - tall, to, foot];
      best = [from, foot - 0.2 * tall];
    }
  }
  if (spot) taken.push(spot);
  return best;
};

const PAINT = {
  line(ctx, store, mark, at) {
    const xs = store.column(mark.x), ys = at.ys ?? store.column(mark.y), sorted = store.sorted(mark.x);
    const visible = span(xs, sorted, at.x0, at.x1);
    ctx.strokeStyle = at.color;
    ctx.lineWidth = 1.5 * at.ratio;
    ctx.lineJoin = "bevel";
    ctx.lineCap = mark.dash === "solid" ? "round" : "butt";
    ctx.setLineDash((DASHES[mark.dash] ?? []).map((n) => n * at.ratio));
    const [from, to] = visible, dense = sorted && to - from > 3 * at.width;
    ctx.fillStyle = at.color;
    if (mark.filled !== null && to > from && !dense) {
      const floor = at.Y(mark.filled);
      ctx.beginPath();
      trace(ctx, xs, ys, visible, at.X, at.Y);
      ctx.lineTo(at.X(xs[to - 1]), floor);
      ctx.lineTo(at.X(xs[from]), floor);
      ctx.globalAlpha = 0.3 * mark.opacity;
      ctx.fill();
      ctx.globalAlpha = mark.opacity;
    }
    if (dense) columnwise(ctx, xs, ys, visible, at.X, at.Y, ctx.lineWidth, ctx.getLineDash());
    else {
      ctx.beginPath();
      trace(ctx, xs, ys, visible, at.X, at.Y);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    if (to - from === 1) {
      ctx.beginPath(); // a line of one point
      ctx.arc(at.X(xs[from]), at.Y(ys[from]), 3 * at.ratio, 0, 7);
      ctx.fill();
    }
    const taken = [];
    ctx.globalAlpha = 1; // notes are read on faint lines, too
    ctx.lineJoin = "round";
    for (const [index, text] of [...mark.notes].reverse()) {
      const px = at.X(xs[index]), py = at.Y(ys[index]);
      if (mark.filled === null) {
        ctx.fillStyle = at.color;
        ctx.beginPath();
        ctx.arc(px, py, 3 * at.ratio, 0, 7);
        ctx.fill();
      }
      const place = beside(xs, ys, sorted, index, ctx.measureText(text).width, 12 * at.ratio, at, taken);
      if (!place) continue;
      ctx.textAlign = "left";
      ctx.lineWidth = 3 * at.ratio;
      ctx.strokeStyle = at.ground; // a rim keeps it apart from the line
      ctx.strokeText(text, ...place);
      ctx.fillStyle = at.ink;
      ctx.fillText(text, ...place);
    }
  },
  band(ctx, store, mark, at) {
    const xs = store.column(mark.x), low = store.column(mark.low), high = store.column(mark.high);
    const [from, to] = span(xs, store.sorted(mark.x), at.x0, at.x1);
    ctx.fillStyle = at.color;
    const step = Math.max(1, Math.floor((to - from) / (2 * at.width)));
    for (let i = from; i < to; ) {
      while (i < to && !(Number.isFinite(low[i]) && Number.isFinite(high[i]))) i++;
      const begin = i;
      while (i < to && Number.isFinite(low[i]) && Number.isFinite(high[i])) i++;
      if (begin === i) break;
      ctx.beginPath();
      for (let k = begin; k < i; k += step) ctx.lineTo(at.X(xs[k]), at.Y(high[k]));
      ctx.lineTo(at.X(xs[i - 1]), at.Y(high[i - 1]));
      for (let k = i - 1; k >= begin; k -= step) ctx.lineTo(at.X(xs[k]), at.Y(low[k]));
      ctx.lineTo(at.X(xs[begin]), at.Y(low[begin]));
      ctx.fill();
    }
  },
  points(ctx, store, mark, at) {
    const xs = store.column(mark.x), ys = store.column(mark.y);
    const values = mark.values === null ? null : store.column(mark.values), color = values && scaled(values);
    const size = (xs.length > 2000 ? 2 : 5) * at.ratio;
    ctx.fillStyle = at.color;
    for (let i = 0; i < xs.length; i++) {
      if (color) ctx.fillStyle = `rgb(${color(values[i])})`;
      ctx.fillRect(at.X(xs[i]) - size / 2, at.Y(ys[i]) - size / 2, size, size);
    }
  },
  bars(ctx, store, mark, at) {
    const heights = store.column(mark.heights), lefts = store.column(mark.left), rights = store.column(mark.right);
    const zero = Math.min(at.bottom, at.Y(at.log ? at.y0 : 0)), gap = mark.edges === null ? 0 : 1;
    ctx.fillStyle = at.color;
    const box = (i) => {
      const left = at.X(lefts[i]), top = at.Y(heights[i]);
      return [left, Math.min(top, zero), Math.max(1, at.X(rights[i]) - left - gap), Math.abs(zero - top)];
    };
    for (let i = 0; i < heights.length; i++) ctx.fillRect(...box(i));
    if (!(mark.opacity < 1)) return;
    ctx.globalAlpha = 1; // behind lines: an outline, which a dark ground shows too
    ctx.strokeStyle = at.color;
    ctx.lineWidth = at.ratio;
    for (let i = 0; i < heights.length; i++) {
      const [left, top, wide, tall] = box(i);
      if (!(tall > 0)) continue;
      ctx.beginPath();
      for (const [right, down] of [[0, tall], [0, 0], [wide, 0], [wide, tall]]) ctx.lineTo(left + right, top + down);
      ctx.stroke();
    }
  },
  grid(ctx, store, mark, at) {
    const cells = store.column(mark.cells), { shape: [rows, columns] } = mark, color = scaled(cells, stopsOf(mark));
    if (!rows || !columns) return;
    const image = new ImageData(columns, rows);
    cells.forEach((value, i) => image.data.set(Number.isNaN(value) ? [0, 0, 0, 0] : [...color(value), 255], 4 * i));
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    const left = at.X(-0.5), top = at.Y(-0.5), width = at.X(columns - 0.5) - left, height = at.Y(rows - 0.5) - top;
    ctx.drawImage(small, left, top, width, height);
    const wide = Math.max(...[...cells].map((value) => ctx.measureText(written(value)).width));
    if (!mark.written || width / columns < wide + 2 * at.ratio || height / rows < 11 * at.ratio) return;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    cells.forEach((value, i) => {
      const [r, g, b] = color(value);
      ctx.fillStyle = 0.3 * r + 0.6 * g + 0.1 * b > 128 ? "#000" : "#fff";
      ctx.fillText(written(value), at.X(i % columns), at.Y(Math.floor(i / columns)));
    });
  },
};

const edges = (store, mark) => {
  const room = mark.edges === null ? 0.1 : 0;
  return [extent(store.column(mark.left))[0] - room, extent(store.column(mark.right))[1] + room];
};

// The limits that a mark asks for: [x low, x high] over all of it, then [y low, y high] over what is seen of it.
const LIMITS = {
  line: (store, mark, seen, log) => {
    const xs = store.column(mark.x), sorted = store.sorted(mark.x);
    if (!seen) return sorted && Number.isFinite(xs[0]) && Number.isFinite(xs.at(-1)) ? [xs[0], xs.at(-1)] : extent(xs);
    const limits = extent(store.column(mark.y), ...span(xs, sorted, ...seen), log);
    return mark.filled === null ? limits : [Math.min(limits[0], mark.filled), Math.max(limits[1], mark.filled)];
  },
  band: (store, mark, seen, log) => {
    const xs = store.column(mark.x), sorted = store.sorted(mark.x);
    if (!seen) return extent(xs);
    const visible = span(xs, sorted, ...seen);
    return [extent(store.column(mark.low), ...visible, log)[0], extent(store.column(mark.high), ...visible, log)[1]];
  },
  points: (store, mark, seen, log) => extent(store.column(seen ? mark.y : mark.x), 0, undefined, log),
  bars: (store, mark, seen, log) => {
    if (!seen) return edges(store, mark);
    const [low, high] = extent(store.column(mark.heights), 0, undefined, log);
    return log ? [low, high] : [Math.min(0, low), Math.max(0, high)];
  },
  grid: (store, mark, seen) => (seen ? [mark.shape[0] - 0.5, -0.5] : [-0.5, mark.shape[1] - 0.5]),
};
