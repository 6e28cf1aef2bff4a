"use strict";

// Draws figures as SVG: the part of Plotly's format that modules/report/figures.py and its
// neighbours use. Plotly itself blocks a browser for longer than a frame, at its start and at each
// drawing.
diel.figures = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TOP = 24, BOTTOM = 44, LEFT = 62, RIGHT = 16, BAR_WIDTH = 64;
  const NEAR = 18, SHADES = 24, LETTER = 6.6, LATER_MS = 50, MOST_TRIES = 100;
  const DASHES = { dash: "6 4", dot: "2 3", dashdot: "6 3 2 3" };
  const SIGNS = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

  const make = (kind, attributes, parent, text) => {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  };
  // Texts of figures are escaped, for Plotly; here they are only ever set as textContent.
  const plain = (text) => String(text).replace(/&(amp|lt|gt|quot|#39);/g, (sign) => SIGNS[sign]);
  const cut = (text, longest) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);
  const px = (number) => number.toFixed(1);
  const brief = (value) =>
    typeof value === "number" ? String(Number(value.toPrecision(5))) : plain(value);

  // -- axes -----------------------------------------------------------------------------------------

  const stepsBetween = (low, high, count) => {
    const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const found = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-6; number += 1) {
      found.push([number * step || 0, digits]); // never -0
    }
    return found;
  };
  const tickText = (value, digits, format) => {
    if (format === ".0%") return `${Math.round(value * 100)}%`;
    if (Math.abs(value) >= 1e6 || digits > 5) return String(Number(value.toPrecision(4)));
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };

  // Returns an axis over values, from one pixel to another: the places of values, and its ticks.
  const axisOf = (layout, values, from, to) => {
    const kind = layout.type ?? (values.some((value) => typeof value === "string") ? "category" : "linear");
    const count = layout.nticks ?? Math.max(2, Math.round(Math.abs(to - from) / (from > to ? 50 : 90)));
    if (kind === "category") {
      const names = [...new Set(values.map(String))], step = (to - from) / Math.max(1, names.length);
      const numbers = new Map(names.map((name, number) => [name, number]));
      const room = Math.floor(Math.abs(to - from) / (from > to ? 16 : 46));
      const most = Math.max(1, Math.min(layout.nticks ?? room, room));
      const every = Math.ceil(names.length / most);
      const at = (value) => from + (numbers.get(String(value)) + 0.5) * step;
      const ticks = names.filter((_, number) => number % every === 0).map((name) => [at(name), plain(name)]);
      return { at, ticks, step: Math.abs(step) };
    }
    const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
    const isLog = kind === "log", scaled = isLog ? Math.log10 : Number;
    const kept = isLog ? numbers.filter((value) => value > 0) : numbers;
    let low = layout.range?.[0], high = layout.range?.[1];
    if (low === undefined) {
      low = kept.length ? kept.reduce((a, b) => Math.min(a, scaled(b)), Infinity) : 0;
      high = kept.length ? kept.reduce((a, b) => Math.max(a, scaled(b)), -Infinity) : 1;
      const isFromZero = layout.rangemode === "tozero" && low >= 0;
      if (isFromZero) low = 0;
      const room = 0.04 * (high - low);
      if (!isFromZero) low -= room;
      high += room;
    }
    if (!(high > low)) { low -= 0.5; high = low + 1; }
    const at = (value) => from + (scaled(value) - low) / (high - low) * (to - from);
    if (!isLog) {
      const ticks = stepsBetween(low, high, count)
        .map(([value, digits]) => [at(value), tickText(value, digits, layout.tickformat)]);
      return { at, ticks };
    }
    const factors = high - low > 3 ? [1] : [1, 2, 5], every = Math.ceil((high - low) / count), ticks = [];
    for (let power = Math.floor(low); power <= high; power += Math.max(1, every)) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (Math.log10(value) >= low && Math.log10(value) <= high) ticks.push([at(value), brief(value)]);
      }
    }
    return { at, ticks };
  };

  // -- pointing -------------------------------------------------------------------------------------

  let tip = null;
  const hideTip = () => { if (tip) tip.hidden = true; };
  const showTip = (event, lines) => {
    if (tip === null) {
      tip = diel.make("div", "figure-tip");
      tip.setAttribute("role", "status");
      document.body.append(tip);
    }
    tip.replaceChildren(...lines.map((line) => diel.make("div", "", line)));
    tip.hidden = false;
    const isRight = event.clientX + 16 + tip.offsetWidth > innerWidth;
    tip.style.left = `${Math.max(4, isRight ? event.clientX - tip.offsetWidth - 16 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8))}px`;
  };
  const under = (drawn, x, y) => {
    let found = null, least = NEAR ** 2;
    for (const point of drawn.points) {
      const far = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (far <= least) { least = far; found = point; }
    }
    return found ?? drawn.boxes.find((box) => x >= box.x && x < box.x + box.width
      && y >= box.y && y < box.y + box.height) ?? null;
  };

  // -- traces ---------------------------------------------------------------------------------------

  const colourOf = (scale, share) => {
    const after = scale.findIndex(([place]) => place >= share), high = scale[Math.max(1, after)];
    const low = scale[Math.max(1, after) - 1], part = (share - low[0]) / (high[0] - low[0] || 1);
    return `color-mix(in srgb, ${high[1]} ${Math.round(part * 100)}%, ${low[1]})`;
  };
  const toldOf = (trace, number, titles) => {
    if (trace.hoverinfo === "skip") return null;
    const given = Array.isArray(trace.text) ? trace.text[number] : trace.text ?? trace.name ?? "";
    const lines = String(given).split("<br>").map(plain);
    if (trace.hoverinfo === "text") return lines;
    return [...lines, `${titles.x} ${brief(trace.x[number])}`, `${titles.y} ${brief(trace.y[number])}`];
  };

  const drawLine = (trace, places, marks) => {
    const isStairs = trace.line?.shape === "hv";
    let path = "";
    places.forEach(([x, y], number) => {
      if (number === 0) path = `M${px(x)},${px(y)}`;
      else path += isStairs ? `H${px(x)}V${px(y)}` : `L${px(x)},${px(y)}`;
    });
    const line = make("path", { d: path, class: "figure-line" }, marks);
    line.style.stroke = trace.line?.color ?? "";
    line.style.strokeWidth = trace.line?.width ?? 2;
    if (DASHES[trace.line?.dash]) line.style.strokeDasharray = DASHES[trace.line.dash];
  };
  const drawDots = (trace, places, marks) => {
    const sizes = trace.marker?.size ?? 6, isTick = trace.marker?.symbol === "line-ns-open";
    const bySize = new Map();
    places.forEach(([x, y], number) => {
      const size = Math.round(Array.isArray(sizes) ? sizes[number] : sizes);
      const path = isTick ? `M${px(x)},${px(y)}v${-size}` : `M${px(x)},${px(y)}h0`;
      bySize.set(size, (bySize.get(size) ?? "") + path);
    });
    for (const [size, path] of bySize) {
      const dots = make("path", { d: path, class: isTick ? "figure-line" : "figure-dots" }, marks);
      dots.style.stroke = trace.marker?.color ?? trace.line?.color ?? "";
      dots.style.strokeWidth = isTick ? 1.5 : size;
      dots.style.strokeOpacity = trace.marker?.opacity ?? 1;
    }
  };
  const drawScatter = (trace, drawn, marks) => {
    const places = trace.x.map((value, number) => [drawn.x.at(value), drawn.y.at(trace.y[number])]);
    const mode = trace.mode ?? "lines";
    if (mode.includes("lines") && places.length > 1) drawLine(trace, places, marks);
    if (mode.includes("markers")) drawDots(trace, places, marks);
    places.forEach(([x, y], number) => {
      const told = toldOf(trace, number, drawn.titles);
      if (told) drawn.points.push({ x, y, told, data: trace.customdata?.[number] });
    });
  };
  const drawBars = (trace, drawn, marks) => {
    const thick = Math.max(1, drawn.y.step * 0.76);
    let path = "";
    trace.y.forEach((name, number) => {
      const start = drawn.isStacked ? drawn.stacks.get(name) ?? 0 : trace.base?.[number] ?? 0;
      drawn.stacks.set(name, start + trace.x[number]);
      const x = drawn.x.at(start), width = Math.max(0.5, drawn.x.at(start + trace.x[number]) - x);
      const y = drawn.y.at(name) - thick / 2;
      path += `M${px(x)},${px(y)}h${px(width)}v${px(thick)}h${px(-width)}z`;
      const share = `${plain(name)}: ${trace.name} ${(trace.x[number] * 100).toFixed(1)}%`;
      const told = trace.hovertemplate ? [share] : toldOf(trace, number, drawn.titles);
      drawn.boxes.push({ x, y, width, height: thick, told });
    });
    make("path", { d: path }, marks).style.fill = trace.marker.color;
  };
  const drawCells = (trace, drawn, marks) => {
    const all = trace.z.flat(), low = Math.min(...all), high = Math.max(...all);
    const wide = drawn.x.step, tall = drawn.y.step, paths = new Array(SHADES).fill("");
    trace.y.forEach((up, j) => trace.x.forEach((across, i) => {
      const value = trace.z[j][i], share = high > low ? (value - low) / (high - low) : 0.5;
      const x = drawn.x.at(across) - wide / 2, y = drawn.y.at(up) - tall / 2;
      paths[Math.min(SHADES - 1, Math.floor(share * SHADES))] +=
        `M${px(x)},${px(y)}h${px(wide)}v${px(tall)}h${px(-wide)}z`;
      const told = [`${plain(across)}, ${plain(up)}: ${Number(value.toPrecision(4))}`];
      drawn.boxes.push({ x, y, width: wide, height: tall, told });
    }));
    const shades = paths.map((_, shade) => colourOf(trace.colorscale, shade / (SHADES - 1)));
    paths.forEach((path, shade) => {
      if (path) make("path", { d: path, class: "figure-cell" }, marks).style.fill = shades[shade];
    });
    drawn.scale = { shades, low, high, title: plain(trace.colorbar?.title?.text ?? "") };
  };
  const DRAW = { scatter: drawScatter, bar: drawBars, contour: drawCells, heatmap: drawCells };

  // -- a figure -------------------------------------------------------------------------------------

  const isShown = (state, trace, number) => {
    const chosen = state.figure.layout.updatemenus?.[0].buttons[state.choice]?.args[0].visible;
    if (chosen) return chosen[number];
    return trace.visible !== false && !state.hidden.has(trace.name);
  };
  const keysOf = (state) => {
    const { data, layout } = state.figure, bar = diel.make("div", "figure-keys");
    const menu = layout.updatemenus?.[0];
    if (menu) {
      const choice = diel.make("select", "figure-choice");
      choice.setAttribute("aria-label", "which parameters");
      menu.buttons.forEach((each) => choice.append(diel.make("option", "", plain(each.label))));
      choice.selectedIndex = state.choice;
      choice.addEventListener("change", () => { state.choice = choice.selectedIndex; draw(state); });
      bar.append(choice);
    }
    const named = data.filter((trace) => trace.name && trace.showlegend !== false);
    if (layout.showlegend === false || named.length < 2) return bar;
    for (const trace of named) {
      const key = diel.make("button", "figure-key", plain(trace.name)), mark = diel.make("i");
      mark.style.background = trace.line?.color ?? trace.marker?.color;
      key.type = "button";
      key.setAttribute("aria-pressed", String(!state.hidden.has(trace.name)));
      key.prepend(mark);
      key.addEventListener("click", () => {
        if (!state.hidden.delete(trace.name)) state.hidden.add(trace.name);
        draw(state);
        state.place.querySelectorAll(".figure-key")[named.indexOf(trace)]?.focus();
      });
      bar.append(key);
    }
    return bar;
  };

  const draw = (state) => {
    const { data, layout } = state.figure, { place } = state;
    const bar = keysOf(state), room = diel.make("div", "figure-room");
    place.replaceChildren(bar, room);
    state.width = place.clientWidth;
    const width = Math.max(220, state.width), height = Math.max(160, room.clientHeight);
    const traces = data.filter((trace, number) => isShown(state, trace, number));
    const cells = traces.find((trace) => trace.z);
    const [xs, ys] = ["x", "y"].map((name) => traces.flatMap((trace) => trace[name]));
    const names = ys.filter((value) => typeof value === "string");
    const longest = names.reduce((most, name) => Math.max(most, plain(name).length), 0);
    const left = Math.min(width * 0.35, Math.max(LEFT, longest * LETTER + 14));
    const right = width - RIGHT - (cells ? BAR_WIDTH : 0), bottom = height - BOTTOM;
    const isStacked = layout.barmode === "stack";
    const isBars = traces.some((trace) => trace.type === "bar");
    const sums = new Map();
    if (isBars) {
      for (const trace of traces) trace.y.forEach((name, number) => {
        const start = isStacked ? sums.get(name) ?? 0 : trace.base?.[number] ?? 0;
        sums.set(name, Math.max(sums.get(name) ?? 0, start + trace.x[number]));
      });
      xs.push(0, ...sums.values());
    }
    const chosen = layout.updatemenus?.[0].buttons[state.choice]?.args[1] ?? {};
    const titles = Object.fromEntries(["x", "y"].map((name) =>
      [name, plain(chosen[`${name}axis.title.text`] ?? layout[`${name}axis`].title?.text ?? "")]));
    const across = isBars ? { rangemode: "tozero", ...layout.xaxis } : layout.xaxis;
    const drawn = { points: [], boxes: [], stacks: new Map(), isStacked, titles, scale: null,
      x: axisOf(across, xs, left, right), y: axisOf(layout.yaxis, ys, bottom, TOP) };
    const svg = make("svg", { width, height, class: "figure-svg" }, room);
    const grid = make("g", { class: "figure-grid" }, svg);
    for (const [y] of drawn.y.step ? [] : drawn.y.ticks) make("path", { d: `M${px(left)},${px(y)}H${px(right)}` }, grid);
    make("path", { d: `M${px(left)},${px(bottom)}H${px(right)}`, class: "figure-axis" }, grid);
    const marks = make("svg", { x: left, y: TOP, width: right - left, height: bottom - TOP,
      viewBox: `${left} ${TOP} ${right - left} ${bottom - TOP}` }, svg);
    for (const trace of traces) DRAW[trace.type](trace, drawn, marks);
    const labels = make("g", { class: "figure-labels" }, svg);
    for (const [y, text] of drawn.y.ticks) {
      make("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, labels, cut(text, Math.floor(left / LETTER)));
    }
    const most = Math.max(4, Math.floor((right - left) / Math.max(1, drawn.x.ticks.length) / LETTER));
    for (const [x, text] of drawn.x.ticks) {
      make("path", { d: `M${px(x)},${bottom}v4`, class: "figure-axis" }, labels);
      make("text", { x, y: bottom + 18, "text-anchor": "middle" }, labels, cut(text, most));
    }
    make("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "figure-title" },
      labels, cut(titles.x, Math.floor((right - left) / LETTER)));
    make("text", { x: 4, y: 13, class: "figure-title" }, labels, cut(titles.y, Math.floor(right / LETTER)));
    if (drawn.scale) drawScale(drawn.scale, right + 14, bottom, labels);
    point(state, svg, drawn);
  };
  const drawScale = ({ shades, low, high, title }, x, bottom, labels) => {
    const tall = (bottom - TOP - 20) / shades.length;
    shades.forEach((shade, number) => {
      make("rect", { x, y: bottom - 4 - (number + 1) * tall, width: 12, height: tall + 0.5 }, labels).style.fill = shade;
    });
    make("text", { x: x + 16, y: bottom - 4 }, labels, brief(Number(low.toPrecision(3))));
    make("text", { x: x + 16, y: TOP + 24 }, labels, brief(Number(high.toPrecision(3))));
    make("text", { x: x + BAR_WIDTH, y: 13, "text-anchor": "end" }, labels, cut(title, 16));
  };
  const point = (state, svg, drawn) => {
    const ring = make("circle", { r: 7, class: "figure-ring", visibility: "hidden" }, svg);
    let isDue = false, found = null;
    svg.addEventListener("pointermove", (event) => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        const box = svg.getBoundingClientRect();
        found = under(drawn, event.clientX - box.left, event.clientY - box.top);
        ring.setAttribute("visibility", found && !found.width ? "visible" : "hidden");
        if (found && !found.width) {
          ring.setAttribute("cx", found.x);
          ring.setAttribute("cy", found.y);
        }
        svg.classList.toggle("figure-opens", found?.data !== undefined);
        if (found && svg.isConnected) showTip(event, found.told);
        else hideTip();
      });
    });
    svg.addEventListener("pointerleave", () => {
      ring.setAttribute("visibility", "hidden");
      hideTip();
    });
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const clicked = under(drawn, event.clientX - box.left, event.clientY - box.top);
      if (clicked?.data !== undefined) emitEvent("diel_point", clicked.data);
    });
  };

  // Shows a figure in an element, in place of the last one; hidden traces and the choice stay.
  const states = new Map();
  const show = (id, figure, tries = 0) => {
    const place = document.getElementById(id);
    if (place === null) { // the element is about to be built
      if (tries < MOST_TRIES) setTimeout(() => show(id, figure, tries + 1), LATER_MS);
      return;
    }
    let state = states.get(id);
    if (state?.place !== place) {
      const hidden = figure.data.filter((trace) => trace.visible === "legendonly");
      state = { place, hidden: new Set(hidden.map((trace) => trace.name)), choice: 0, width: 0 };
      states.set(id, state);
      new ResizeObserver(() => {
        if (Math.abs(place.clientWidth - state.width) > 2) requestAnimationFrame(() => draw(state));
      }).observe(place);
    }
    state.figure = figure;
    state.choice = Math.min(state.choice, (figure.layout.updatemenus?.[0].buttons.length ?? 1) - 1);
    hideTip();
    draw(state);
  };

  return { show };
})();
