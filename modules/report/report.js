/* Everything is drawn without this: it lets one point at trials, choose ranges and sort. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement, tip = document.getElementById("tip");
  const svgns = "http://www.w3.org/2000/svg", all = (query, from = document) => [...from.querySelectorAll(query)];
  const make = (name, attributes, parent) => {
    const made = document.createElementNS(svgns, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return parent.appendChild(made);
  };
  const show = value => typeof value === "number" && !Number.isInteger(value)
    ? String(Number(value.toPrecision(4))) : String(value);

  /* -- light and dark -- */
  const theme = document.getElementById("theme");
  const paint = dark => {
    root.dataset.theme = dark ? "dark" : "light";
    theme.textContent = dark ? "light" : "dark";
  };
  const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  paint(asked ? asked === "dark" : system.matches);
  system.addEventListener("change", event => paint(event.matches));
  theme.hidden = false;
  theme.addEventListener("click", () => paint(root.dataset.theme !== "dark"));

  /* -- what is drawn where -- */
  const plots = all('svg[data-chart="points"]').map(svg => {
    const at = new Map();
    for (const path of all("path[data-rows]", svg)) {
      const rows = path.dataset.rows.split(" ").map(Number);
      path.getAttribute("d").slice(1).split("M").forEach((place, i) => {
        const [x, y] = place.split(/[,h]/).map(Number);
        at.set(rows[i], [x, y]);
      });
    }
    return { svg, at, over: svg.querySelector(".over") };
  });
  const parallel = document.querySelector('svg[data-chart="parallel"]');
  const lines = parallel ? all(".lines polyline", parallel) : [];
  const lineOf = new Map(lines.map(line => [Number(line.dataset.i), line]));
  const placesOf = new Map(lines.map(line => [Number(line.dataset.i), new Map(
    line.getAttribute("points").split(" ").map(point => point.split(",").map(Number)))]));
  const curveOf = new Map(all(".curves polyline").map(line => [Number(line.dataset.i), line]));
  const tableRows = all("tr[data-i]"), rowOf = new Map(tableRows.map(row => [Number(row.dataset.i), row]));

  /* -- pointing at a trial: it is shown everywhere -- */
  const placeTip = event => {
    const { innerWidth, innerHeight } = window, { offsetWidth, offsetHeight } = tip;
    const right = event.clientX + 16 + offsetWidth > innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX - offsetWidth - 16 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - offsetHeight - 8))}px`;
  };
  let lit = null, brushing = false;
  const light = (i, event) => {
    if (i !== lit) {
      for (const { over } of plots) over.querySelector(".ring")?.remove();
      parallel?.querySelector(".over").replaceChildren();
      curveOf.get(lit)?.classList.remove("lit");
      rowOf.get(lit)?.classList.remove("lit");
      lit = i;
      if (i !== null) {
        for (const { at, over } of plots) {
          const place = at.get(i);
          if (place) make("circle", { class: "ring", cx: place[0], cy: place[1], r: 7 }, over);
        }
        const line = lineOf.get(i);
        if (line) make("polyline", { points: line.getAttribute("points") }, parallel.querySelector(".over"));
        curveOf.get(i)?.classList.add("lit");
        rowOf.get(i)?.classList.add("lit");
        tip.replaceChildren(...data.names.flatMap((name, column) => {
          const label = document.createElement("span"), value = document.createElement("b");
          label.textContent = name;
          value.textContent = show(data.rows[i][column]);
          if (data.keys[column] === data.objective) value.className = "chosen";
          return [label, value];
        }));
      }
    }
    tip.hidden = i === null || !event;
    if (!tip.hidden) placeTip(event);
  };
  const inside = (svg, event) => {
    const matrix = svg.getScreenCTM();
    return matrix && new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
  };
  for (const { svg, at } of plots) {
    svg.addEventListener("pointermove", event => {
      if (event.target.dataset.i !== undefined) {
        light(Number(event.target.dataset.i), event);
        return;
      }
      const point = inside(svg, event);
      let nearest = null, least = 18 ** 2;
      for (const [i, [x, y]] of at) {
        const far = (x - point.x) ** 2 + (y - point.y) ** 2;
        if (far < least) { least = far; nearest = i; }
      }
      light(nearest, event);
    });
    svg.addEventListener("pointerleave", () => light(null));
  }
  for (const line of lines) {
    line.addEventListener("pointerenter", event => { if (!brushing) light(Number(line.dataset.i), event); });
    line.addEventListener("pointerleave", () => light(null));
  }
  for (const row of tableRows) {
    row.addEventListener("pointerenter", () => light(Number(row.dataset.i)));
    row.addEventListener("pointerleave", () => light(null));
  }

  /* -- choosing ranges on the axes -- */
  const chosen = new Map();
  let inRange = null, wanted = () => true;
  const showRows = () => {
    let shown = 0;
    for (const row of tableRows) {
      const i = Number(row.dataset.i);
      row.hidden = (inRange !== null && !inRange.has(i)) || !wanted(i);
      shown += !row.hidden;
    }
    const count = document.querySelector(".filtered-count");
    if (count) count.textContent = shown < tableRows.length ? `${shown} of ${tableRows.length}` : "";
  };
  const apply = () => {
    const kept = new Set();
    for (const line of lines) {
      const i = Number(line.dataset.i), places = placesOf.get(i);
      const fits = [...chosen].every(([x, [from, to]]) => places.get(x) >= from && places.get(x) <= to);
      line.classList.toggle("out", !fits);
      if (fits) kept.add(i);
    }
    const any = chosen.size > 0;
    inRange = any ? kept : null;
    showRows();
    for (const { svg, at, over } of plots) {
      svg.classList.toggle("filtered", any);
      over.querySelector(".kept")?.remove();
      if (!any) continue;
      const path = [...kept].filter(i => at.has(i)).map(i => `M${at.get(i).join(",")}h0`).join("");
      if (path) make("path", { class: "dots kept", d: path }, over);
    }
    document.querySelector(".chosen-count").textContent = any ? `${kept.size} of ${lines.length} trials` : "";
    document.querySelector(".clear").hidden = !any;
  };
  if (parallel) {
    const top = Number(parallel.dataset.top), bottom = Number(parallel.dataset.bottom);
    for (const axis of all(".dimension", parallel)) {
      const x = Number(axis.dataset.x), grip = axis.querySelector(".grip");
      let start = null, range = null;
      const drop = () => { range?.remove(); range = null; chosen.delete(x); };
      grip.addEventListener("pointerdown", event => {
        drop(); light(null); brushing = true;
        start = inside(parallel, event).y;
        grip.setPointerCapture(event.pointerId);
        event.preventDefault();
      });
      grip.addEventListener("pointermove", event => {
        if (start === null) return;
        const now = Math.min(bottom, Math.max(top, inside(parallel, event).y));
        const from = Math.max(top, Math.min(start, now)), to = Math.max(start, now);
        if (to - from < 3) return;
        range ??= make("rect", { class: "range", x: x - 9, width: 18, rx: 3 }, axis);
        range.setAttribute("y", from - 2);
        range.setAttribute("height", to - from + 4);
        chosen.set(x, [from - 2, to + 2]);
        apply();
      });
      const end = () => { start = null; brushing = false; apply(); };
      grip.addEventListener("pointerup", end);
      grip.addEventListener("pointercancel", end);
      axis.addEventListener("clear", drop);
    }
    document.querySelector(".clear").addEventListener("click", () => {
      for (const axis of all(".dimension", parallel)) axis.dispatchEvent(new Event("clear"));
      apply();
    });
  }

  /* -- filtering the table: words, and columns compared with values -- */
  const filter = document.getElementById("filter");
  if (filter) {
    filter.closest(".filter").hidden = false;
    const compare = {
      ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
      "=": (a, b) => a === b,
    };
    const columnOf = name => data.keys.findIndex(key => key.toLowerCase() === name);
    const test = word => {
      const found = /^([^<>=]+)(>=|<=|>|<|=)(.+)$/.exec(word), column = found ? columnOf(found[1]) : -1;
      if (column >= 0) {
        const number = Number(found[3]), isNumber = found[3].trim() !== "" && !Number.isNaN(number);
        return row => {
          const value = row[column];
          if (typeof value === "number") return isNumber && compare[found[2]](value, number);
          return found[2] === "=" && String(value).toLowerCase() === found[3];
        };
      }
      return row => row.some(value => show(value).toLowerCase().includes(word));
    };
    filter.addEventListener("input", () => {
      const tests = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map(test);
      wanted = i => tests.every(fits => fits(data.rows[i]));
      showRows();
    });
  }

  /* -- pointing at a cell of two parameters -- */
  for (const svg of all('svg[data-chart="plane"]')) {
    const { x, y, z, trials } = JSON.parse(svg.dataset.plane), names = all("text.name", svg).map(name => name.textContent);
    const [left, top, right, bottom] = svg.dataset.box.split(" ").map(Number);
    svg.addEventListener("pointermove", event => {
      const point = inside(svg, event);
      const i = Math.round((point.x - left) / (right - left) * (x.length - 1)), j = Math.round((bottom - point.y) / (bottom - top) * (y.length - 1));
      const at = x.length > 1 ? i : 0, up = y.length > 1 ? j : 0;
      tip.hidden = z[at]?.[up] === undefined;
      if (tip.hidden) return;
      tip.replaceChildren(...[[names[0], x[at]], [names[1], y[up]], ["expected", show(z[at][up])], ["trials", trials[at][up]]].flatMap(([name, value]) => {
        const label = document.createElement("span"), told = document.createElement("b");
        label.textContent = name;
        told.textContent = value;
        return [label, told];
      }));
      placeTip(event);
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  /* -- sorting the table -- */
  for (const head of all(".sortable th")) {
    head.tabIndex = 0;
    const sort = () => {
      const column = head.cellIndex, body = head.closest("table").tBodies[0];
      const down = head.getAttribute("aria-sort") === "ascending";
      const key = row => {
        const cell = row.cells[column], text = cell.dataset.v ?? cell.textContent;
        return head.dataset.kind === "number" ? Number(text.replaceAll(",", "")) : text;
      };
      const keyed = [...body.rows].map(row => [key(row), row]);
      keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...keyed.map(([, row]) => row));
      for (const other of all("th", head.parentNode)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  }

  /* -- copying -- */
  for (const button of all(".copy")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentNode.querySelector("code").textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  /* -- a sweep that goes on: read the page again, unless somebody is busy with it -- */
  const reload = document.getElementById("reload");
  if (reload) {
    reload.closest(".live").hidden = false;
    setInterval(() => {
      if (reload.checked && !document.hidden && lit === null && chosen.size === 0 && !filter?.value) location.reload();
    }, data.reload_s * 1000);
  }
})();
