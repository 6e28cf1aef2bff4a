"use strict";

// The part of the page of a sweep that runs in the browser: which cards can be seen, the table of
// trials, and parallel coordinates.
diel.sweep = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TOP = 40, BOTTOM = 14, LEFT = 76, RIGHT = 40, HEIGHT = 330, SHADES = 7, LEAST = 0.01;
  const make = (kind, attributes, parent, text) => {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  };
  const short = (text, longest) => text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
  const within = (value) => Math.min(1, Math.max(0, value));

  // -- the cards that can be seen, and those just outside: only their figures are drawn ------------

  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) seen.add(target.dataset.figure);
      else seen.delete(target.dataset.figure);
    }
    emitEvent("diel_seen", [...seen]);
  }, { rootMargin: "120px" });
  const watchCards = () => {
    for (const card of document.querySelectorAll("[data-figure]")) watcher.observe(card);
  };

  // -- the table of trials --------------------------------------------------------------------------

  const WIDTH = 110, WIDEST = 320, LETTER = 7.5;
  let trials = null;
  const written = (value) => value === null || value === undefined ? ""
    : typeof value === "number" && !Number.isSafeInteger(value) ? String(Number(value.toPrecision(5)))
      : String(value);
  // Rows are lists of values, in the order of the columns; the first is the trial's number.
  const columns = (titles, address) => {
    const chosen = trials?.chosen ?? null;
    trials = new diel.Table(diel.part("trials"), titles.map((title, at) => ({
      title,
      width: `minmax(${Math.round(Math.min(WIDEST, Math.max(WIDTH, title.length * LETTER)))}px, 1fr)`,
      cell: (key, row) => written(row[at]),
      order: (key, row) => row[at] ?? "",
      ...(at ? {} : { link: (key) => address + encodeURIComponent(key) }),
    })), "trials");
    trials.choose(chosen && [...chosen]);
  };
  const rows = (added) => {
    trials.apply({ gone: [], set: Object.fromEntries(added.map((row) => [row[0], row])) });
  };
  const choose = (chosen) => trials?.choose(chosen);

  // -- parallel coordinates -------------------------------------------------------------------------

  let figure = null, waiting = null, place = null, shownWidth = 0, dragged = null;
  const ranges = new Map();  // by the label of an axis: its lowest and highest place

  const show = (part, drawn) => {
    if (dragged !== null) { waiting = drawn; return; }
    if (place === null) {
      place = diel.part(part);
      new ResizeObserver(() => {
        if (Math.abs(place.clientWidth - shownWidth) > 2) requestAnimationFrame(draw);
      }).observe(place);
    }
    figure = drawn;
    for (const label of [...ranges.keys()]) {
      if (!figure.dimensions.some((axis) => axis.label === label)) ranges.delete(label);
    }
    draw();
    if (ranges.size) tell();
  };

  const tell = () => emitEvent("diel_ranges", Object.fromEntries(ranges));

  const draw = () => {
    const axes = figure.dimensions;
    shownWidth = place.clientWidth;
    const width = Math.max(shownWidth, 96 * axes.length);
    const across = axes.map((_, at) => LEFT + at * (width - LEFT - RIGHT) / (axes.length - 1));
    const down = (where) => HEIGHT - BOTTOM - where * (HEIGHT - TOP - BOTTOM);
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.axis : null;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("width", width);
    svg.setAttribute("height", HEIGHT);
    const lines = make("g", { class: "sweep-lines" }, svg);
    const paths = axes[0].values.map((_, row) => {
      let path = "", pen = "M";
      axes.forEach((axis, at) => {
        const value = axis.values[row];
        if (value === null) { pen = "M"; return; }
        path += `${pen}${across[at].toFixed(1)},${down(value).toFixed(1)}`;
        pen = "L";
      });
      return path;
    });
    const colours = figure.line.colorscale;
    const shadeOf = (row) => Math.round((figure.line.color[row] ?? 0) * (SHADES - 1));
    const colourOf = (shade) => {
      const at = shade / (SHADES - 1) * (colours.length - 1), low = Math.floor(at);
      const high = Math.min(low + 1, colours.length - 1), share = Math.round((at - low) * 100);
      return `color-mix(in srgb, ${colours[high][1]} ${share}%, ${colours[low][1]})`;
    };
    const paint = () => {
      const kept = new Array(SHADES).fill(""), last = paths.length - 1;
      let left = "", best = "";
      paths.forEach((path, row) => {
        const fits = axes.every((axis) => {
          const range = ranges.get(axis.label), value = axis.values[row];
          return !range || (value !== null && value >= range[0] && value <= range[1]);
        });
        if (!fits) left += path;
        else if (row === last) best = path;
        else kept[shadeOf(row)] += path;
      });
      lines.replaceChildren();
      if (left) make("path", { d: left, class: "sweep-line-out" }, lines);
      kept.forEach((path, shade) => {
        if (path) make("path", { d: path }, lines).style.stroke = colourOf(shade);
      });
      if (best) make("path", { d: best, class: "sweep-line-best" }, lines);
    };
    paint();
    axes.forEach((axis, at) => {
      const x = across[at], group = make("g", { class: "sweep-axis" }, svg);
      make("path", { d: `M${x},${TOP}V${HEIGHT - BOTTOM}` }, group);
      axis.tickvals.forEach((where, number) => {
        make("path", { d: `M${x - 4},${down(where)}h4` }, group);
        make("text", { x: x - 8, y: down(where) + 4, "text-anchor": "end" }, group,
          short(String(axis.ticktext[number]), 11));
      });
      const room = Math.floor((width - LEFT - RIGHT) / (axes.length - 1) / 7.5);
      const name = make("text", { x, y: 20, "text-anchor": "middle", class: "sweep-axis-name" }, group,
        short(axis.label, Math.max(8, room)));
      make("title", {}, name, axis.label);
      const band = make("rect", { x: x - 8, width: 16, rx: 3, class: "sweep-range" }, group);
      const grip = make("rect", {
        x: x - 14, y: TOP, width: 28, height: HEIGHT - TOP - BOTTOM, class: "sweep-grip", tabindex: 0,
        role: "slider", "aria-label": `range of ${axis.label}`, "aria-orientation": "vertical",
        "aria-valuemin": 0, "aria-valuemax": 100, "data-axis": axis.label,
      }, group);
      const mark = () => {
        const range = ranges.get(axis.label);
        band.setAttribute("y", range ? down(range[1]) : TOP);
        band.setAttribute("height", range ? down(range[0]) - down(range[1]) : 0);
        grip.setAttribute("aria-valuenow", range ? Math.round(50 * (range[0] + range[1])) : 50);
        grip.setAttribute("aria-valuetext", range
          ? `from ${Math.round(range[0] * 100)} to ${Math.round(range[1] * 100)} % of the axis` : "all");
      };
      mark();
      let isDue = false;
      const change = (range) => {
        if (range) ranges.set(axis.label, range);
        else ranges.delete(axis.label);
        mark();
        if (isDue) return;
        isDue = true;
        requestAnimationFrame(() => { isDue = false; paint(); });
      };
      let start = 0;
      const whereOf = (event) => {
        const y = event.clientY - svg.getBoundingClientRect().top;
        return within((HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM));
      };
      grip.addEventListener("pointerdown", (event) => {
        start = whereOf(event);
        dragged = axis.label;
        grip.setPointerCapture(event.pointerId);
        change(null);
      });
      grip.addEventListener("pointermove", (event) => {
        if (dragged !== axis.label) return;
        const now = whereOf(event), low = Math.min(start, now), high = Math.max(start, now);
        change(high - low < LEAST ? null : [Math.max(0, low - LEAST), Math.min(1, high + LEAST)]);
      });
      const end = () => {
        if (dragged === null) return;
        dragged = null;
        tell();
        const late = waiting;
        waiting = null;
        if (late) show("parallel", late);
      };
      grip.addEventListener("pointerup", end);
      grip.addEventListener("pointercancel", end);
      grip.addEventListener("keydown", (event) => {
        const step = { ArrowUp: 0.05, ArrowDown: -0.05 }[event.key];
        if (event.key === "Escape") change(null);
        else if (step === undefined) return;
        else {
          const [low, high] = ranges.get(axis.label) ?? (step > 0 ? [0.45, 1] : [0, 0.55]);
          const move = Math.max(-low, Math.min(1 - high, step));
          if (event.shiftKey) change([low, within(Math.max(low + 0.05, high + step))]);
          else change([low + move, high + move]);
        }
        event.preventDefault();
        tell();
      });
      if (focused === axis.label) queueMicrotask(() => grip.focus());
    });
    place.replaceChildren(svg);
  };

  return { watchCards, columns, rows, choose, show };
})();
