/* The script of a report, which is complete without it: points at trials, chooses ranges, sorts. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent), root = document.documentElement;
  const all = (query, from = document) => [...from.querySelectorAll(query)];
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

  /* -- trials that are pointed at, and those in the chosen ranges -- */
  let inRange = null, wanted = () => true;
  const tableRows = all("tr[data-row]");
  const showRows = () => {
    let shown = 0;
    for (const row of tableRows) {
      const i = row.dataset.row;
      row.hidden = (inRange !== null && !inRange.has(i)) || !wanted(i);
      shown += !row.hidden;
    }
    const count = document.querySelector(".filtered-count");
    if (count) count.textContent = shown < tableRows.length ? `${shown} of ${tableRows.length}` : "";
  };
  const figures = new DielFigures(document.querySelector("main"), {
    tell: i => data.names.map((name, column) =>
      [name, show(data.rows[i][column]), data.keys[column] === data.objective]),
    onKeep: kept => { inRange = kept; showRows(); },
  });

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
      if (reload.checked && !document.hidden && !figures.isBusy && !filter?.value) location.reload();
    }, data.reload_s * 1000);
  }
})();
