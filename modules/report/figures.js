/* Lets one point at the trials of figures, choose ranges on axes, and hide layers: figures are
   complete without it.

     const figures = new DielFigures(element, hooks);
     figures.show(html);    puts figures into the element; what was chosen and hidden stays

   Hooks, each of which may be missing: tell(row) returns what is told of a trial, [name, value,
   whether it is the objective], where a figure does not say it itself; onKeep(rows) is called with
   the trials in the chosen ranges, or null, at each change; onChoose(ranges) at its end, with the
   lowest and highest place by the name of an axis; onOpen(trial) after a click on one. */
"use strict";
globalThis.DielFigures = (() => {
  const NS = "http://www.w3.org/2000/svg", NEAR = 18, LEAST = 0.01, STEP = 0.05;
  const all = (query, from) => [...from.querySelectorAll(query)];
  const make = (name, attributes, parent) => {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return parent.appendChild(made);
  };
  const within = value => Math.min(1, Math.max(0, value));
  const inside = (svg, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  let tip = null;
  const hideTip = () => { if (tip) tip.hidden = true; };
  const showTip = (event, told) => {
    if (tip === null) {
      tip = document.createElement("div");
      tip.id = "tip";
      tip.setAttribute("role", "status");
      document.body.append(tip);
    }
    tip.replaceChildren(...told.flatMap(([name, value, isChosen]) => {
      const label = document.createElement("span"), shown = document.createElement("b");
      label.textContent = name;
      shown.textContent = value;
      if (isChosen) shown.className = "chosen";
      return [label, shown];
    }));
    tip.hidden = false;
    const { offsetWidth, offsetHeight } = tip, right = event.clientX + 16 + offsetWidth > innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX - offsetWidth - 16 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - offsetHeight - 8))}px`;
  };

  return class {
    constructor(root, hooks = {}) {
      this.root = root;
      this.hooks = hooks;
      this.hidden = new Set();  /* of layers: the names of figure and layer */
      this.ranges = new Map();  /* by the name of an axis: lowest and highest place, 0 to 1 */
      this.lit = this.dragged = this.waiting = null;
      root.addEventListener("pointermove", event => this.move(event));
      root.addEventListener("pointerleave", () => this.light(null));
      root.addEventListener("pointerdown", event => this.grab(event));
      for (const name of ["pointerup", "pointercancel"]) root.addEventListener(name, () => this.drop());
      root.addEventListener("keydown", event => this.press(event));
      root.addEventListener("click", event => this.click(event));
      this.read();
    }

    get isBusy() { return this.lit !== null || this.ranges.size > 0; }

    show(html) {
      if (this.dragged) { this.waiting = html; return; }
      const focused = this.root.contains(document.activeElement) && document.activeElement;
      const { name, key } = { name: focused?.parentNode?.dataset.name, key: focused?.dataset?.key };
      this.root.innerHTML = html;
      this.read();
      const again = key ? `.key[data-key="${CSS.escape(key)}"]` : name && `[data-name="${CSS.escape(name)}"] .grip`;
      if (again) this.root.querySelector(again)?.focus();
      if (this.ranges.size) this.hooks.onChoose?.(this.ranges);
    }

    /* Finds what is drawn where. */
    read() {
      const { root } = this;
      this.light(null);
      this.tips = Object.assign({}, ...all(".drawn[data-tips]", root).map(each => JSON.parse(each.dataset.tips)));
      this.plots = all('svg[data-chart="points"]', root).map(svg => ({
        svg, over: svg.querySelector(".over"), dots: all("path[data-rows]", svg).flatMap(path => {
          const rows = path.dataset.rows.split(" ");
          return path.getAttribute("d").slice(1).split("M").map((place, i) => {
            const [x, y] = place.split(/[,h]/).map(Number);
            return { row: rows[i], x, y, path };
          });
        }),
      }));
      this.parallel = root.querySelector('svg[data-chart="parallel"]');
      this.parallel?.setAttribute("role", "group");  /* it has sliders */
      const lines = this.parallel ? all(".lines polyline", this.parallel) : [];
      this.lines = lines.map(line => ({ line, row: line.dataset.row, at: new Map(
        line.getAttribute("points").split(" ").map(point => point.split(",").map(Number))) }));
      this.axes = new Map(all(".dimension", root).map(axis => [axis.dataset.name, axis]));
      for (const name of [...this.ranges.keys()]) if (!this.axes.has(name)) this.ranges.delete(name);
      for (const [name, axis] of this.axes) {
        const grip = axis.querySelector(".grip"), about = {
          tabindex: 0, role: "slider", "aria-label": `range of ${name}`, "aria-orientation": "vertical",
          "aria-valuemin": 0, "aria-valuemax": 100,
        };
        for (const key in about) grip.setAttribute(key, about[key]);
        this.mark(name);
      }
      if (this.ranges.size) this.apply();
      for (const key of all("span.key[data-key]", root)) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "key";
        button.dataset.key = key.dataset.key;
        button.append(...key.childNodes);
        key.replaceWith(button);
        this.hide(button);
      }
    }

    /* -- pointing at a trial: it is shown in all figures of the element -- */

    move(event) {
      if (this.dragged) { this.drag(event); return; }
      const svg = event.target.closest("svg[data-chart]"), told = event.target.closest("[data-row], [data-text]");
      if (told?.dataset.row !== undefined) this.light(told.dataset.row, svg && event);
      else if (told) { this.light(null); showTip(event, [["", told.dataset.text]]); }
      else if (svg?.dataset.chart === "points") this.light(this.nearest(svg, event), event);
      else if (svg?.dataset.chart === "plane") this.tellCell(svg, event);
      else this.light(null);
    }

    nearest(svg, event) {
      const point = inside(svg, event);
      let found = null, least = NEAR ** 2;
      for (const { row, x, y, path } of this.plots.find(plot => plot.svg === svg).dots) {
        const far = (x - point.x) ** 2 + (y - point.y) ** 2;
        if (far < least && path.style.display !== "none") { least = far; found = row; }
      }
      return found;
    }

    light(row, event) {
      if (row !== this.lit) {
        for (const old of all(".over .ring, .over polyline", this.root)) old.remove();
        for (const old of all(".lit", this.root)) old.classList.remove("lit");
        this.lit = row;
        for (const { dots, over } of row === null ? [] : this.plots) {
          const dot = dots.find(each => each.row === row && each.path.style.display !== "none");
          if (dot) make("circle", { class: "ring", cx: dot.x, cy: dot.y, r: 7 }, over);
        }
        for (const element of row === null ? [] : all(`[data-row="${CSS.escape(row)}"]`, this.root)) {
          const over = element.closest(".lines") && this.parallel.querySelector(".over");
          if (over) make("polyline", { points: element.getAttribute("points") }, over);
          else element.classList.add("lit");
        }
        this.root.classList.toggle("opens", row !== null && Boolean(this.hooks.onOpen));
      }
      if (row !== null && event) showTip(event, this.tips[row] ?? this.hooks.tell?.(row) ?? []);
      else hideTip();
    }

    tellCell(svg, event) {
      this.light(null);
      const { names, labels: [across, up], value, trials, told, box } = JSON.parse(svg.dataset.plane);
      const [left, top, right, bottom] = box, point = inside(svg, event);
      const i = Math.floor((point.x - left) / (right - left) * across.length);
      const j = Math.floor((bottom - point.y) / (bottom - top) * up.length);
      if (value[i]?.[j] === undefined) return;
      showTip(event, [[names[0], across[i]], [names[1], up[j]], [told[0], value[i][j]], [told[1], trials[i][j]]]);
    }

    click(event) {
      const key = event.target.closest(".key[data-key]");
      if (key) {
        const name = this.nameOf(key);
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.hide(key);
      } else if (event.target.closest(".clear")) {
        const names = [...this.ranges.keys()];
        this.ranges.clear();
        for (const name of names) this.mark(name);
        this.apply();
        this.hooks.onChoose?.(this.ranges);
      } else if (this.lit !== null && event.target.closest("svg[data-chart]")) {
        this.hooks.onOpen?.(this.tips[this.lit]?.[0]?.[1]);
      }
    }

    /* -- keys hide layers -- */

    nameOf(key) { return `${key.closest(".drawn").dataset.of}\n${key.dataset.key}`; }

    hide(key) {
      const isHidden = this.hidden.has(this.nameOf(key));
      key.setAttribute("aria-pressed", String(!isHidden));
      for (const layer of all(`[data-name="${CSS.escape(key.dataset.key)}"]`, key.closest(".drawn"))) {
        layer.style.display = isHidden ? "none" : "";
      }
    }

    /* -- choosing ranges on the axes of parallel coordinates -- */

    whereOf(y) {
      const { top, bottom } = this.parallel.dataset;
      return (bottom - y) / (bottom - top);
    }

    grab(event) {
      const grip = event.target.closest(".grip");
      if (!grip) return;
      this.light(null);
      this.dragged = grip.parentNode.dataset.name;
      this.start = within(this.whereOf(inside(this.parallel, event).y));
      grip.setPointerCapture(event.pointerId);
      this.change(this.dragged, null);
    }

    drag(event) {
      const now = within(this.whereOf(inside(this.parallel, event).y));
      const low = Math.min(this.start, now), high = Math.max(this.start, now);
      this.change(this.dragged, high - low < LEAST ? null : [within(low - LEAST), within(high + LEAST)]);
    }

    drop() {
      if (this.dragged === null) return;
      const late = this.waiting;
      this.dragged = this.waiting = null;
      this.hooks.onChoose?.(this.ranges);
      if (late !== null) this.show(late);
    }

    press(event) {
      const name = event.target.closest(".grip")?.parentNode.dataset.name;
      const step = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
      if (name === undefined || (step === undefined && event.key !== "Escape")) return;
      const [low, high] = this.ranges.get(name) ?? (step > 0 ? [0.45, 1] : [0, 0.55]);
      const move = Math.max(-low, Math.min(1 - high, step ?? 0));
      if (step === undefined) this.change(name, null);
      else if (event.shiftKey) this.change(name, [low, within(Math.max(low + STEP, high + step))]);
      else this.change(name, [low + move, high + move]);
      event.preventDefault();
      this.hooks.onChoose?.(this.ranges);
    }

    change(name, range) {
      if (range) this.ranges.set(name, range);
      else this.ranges.delete(name);
      this.mark(name);
      this.apply();
    }

    mark(name) {
      const axis = this.axes.get(name), range = this.ranges.get(name);
      const grip = axis.querySelector(".grip"), { top, bottom } = this.parallel.dataset;
      axis.querySelector(".range")?.remove();
      grip.setAttribute("aria-valuenow", range ? Math.round(50 * (range[0] + range[1])) : 50);
      grip.setAttribute("aria-valuetext", range
        ? `from ${Math.round(range[0] * 100)} to ${Math.round(range[1] * 100)} % of the axis` : "all");
      if (!range) return;
      const tall = bottom - top, y = bottom - range[1] * tall;
      make("rect", { class: "range", x: axis.dataset.x - 9, y, width: 18, height: (range[1] - range[0]) * tall, rx: 3 }, axis);
    }

    apply() {
      const chosen = [...this.ranges].map(([name, range]) => [Number(this.axes.get(name).dataset.x), ...range]);
      const kept = new Set(), any = chosen.length > 0;
      for (const { line, row, at } of this.lines) {
        const fits = chosen.every(([x, low, high]) => {
          const where = this.whereOf(at.get(x));
          return where >= low && where <= high;
        });
        line.classList.toggle("out", !fits);
        if (fits) kept.add(row);
      }
      for (const { svg, dots, over } of this.plots) {
        svg.classList.toggle("filtered", any);
        over.querySelector(".kept")?.remove();
        const path = any ? dots.filter(dot => kept.has(dot.row)).map(({ x, y }) => `M${x},${y}h0`).join("") : "";
        if (path) make("path", { class: "dots kept", d: path }, over);
      }
      const count = this.root.querySelector(".chosen-count"), clear = this.root.querySelector(".clear");
      if (count) count.textContent = any ? `${kept.size} of ${this.lines.length} trials` : "";
      if (clear) clear.hidden = !any;
      this.hooks.onKeep?.(any ? kept : null);
    }
  };
})();
