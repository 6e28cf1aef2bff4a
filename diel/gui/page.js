"use strict";

// The script of all pages: tables, the page of a run, edits that would be lost, the theme.
// Text of a run is set as textContent, never as HTML.
globalThis.diel = {};

diel.part = (name) => document.querySelector(`[data-part="${name}"]`);

diel.make = (kind, className, text) => {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// Copies a text: by a selection if the page may not use the clipboard, as without https.
diel.copy = async (event, text) => {
  const label = event.currentTarget.querySelector(".block");
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    const field = diel.make("textarea", "", text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  label.textContent = "Copied";
  setTimeout(() => { label.textContent = "Copy"; }, 1500);
};

// Returns a duration as a text, "2 h 5 min" or "3.2 s", as diel/text.py does.
diel.duration = (seconds) => {
  if (seconds < 59.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => whole >= size);
  const rest = at < 3 ? Math.floor((whole % units[at][1]) / units[at + 1][1]) : 0;
  const text = `${Math.floor(whole / units[at][1])} ${units[at][0]}`;
  return rest ? `${text} ${rest} ${units[at + 1][0]}` : text;
};

// Compares two values of a column, to sort by it: numbers before words, and then what is missing.
diel.order = (a, b) => {
  const kind = (value) => typeof value === "number" ? 0 : value === null ? 2 : 1;
  return kind(a) - kind(b) || (a < b ? -1 : a > b ? 1 : 0);
};

// A table of any length: only the rows that can be seen are in the page.
diel.Table = class {
  static ROW = 26;
  static GAP = 12;
  static COMPARE = {
    ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
    "=": (a, b) => a === b,
  };

  // columns: {title, width, cell(key, row) -> text, order(key, row) -> number or text, state: whether
  // the text is a state, link(key) -> address, moves: whether the text changes with the clock}
  constructor(container, columns, name) {
    this.columns = columns;
    this.rows = new Map();
    this.searched = new Map(); // the text of each row in which words are searched, by its key
    this.chosen = null; // the keys of rows that are shown, or null for all
    this.sorting = { column: 0, down: false };
    this.words = "";
    this.tests = [];
    this.isDue = false;
    const bar = diel.make("div", "diel-table-bar");
    this.filter = diel.make("input", "diel-filter");
    this.filter.type = "search";
    this.filter.placeholder = "filter";
    this.filter.setAttribute("aria-label", `filter ${name}`);
    this.filter.addEventListener("input", () => this.show(this.filter.value));
    this.count = diel.make("span", "diel-count");
    bar.append(this.filter, this.count);
    this.scroller = diel.make("div", "diel-scroller");
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "table");
    this.scroller.setAttribute("aria-label", name);
    this.scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    const head = diel.make("div", "diel-row diel-row-head");
    head.setAttribute("role", "row");
    this.template = columns.map((column) => column.width).join(" ");
    head.style.gridTemplateColumns = this.template;
    columns.forEach((column, index) => {
      const button = diel.make("button", "diel-sort", column.title), cell = diel.make("div");
      cell.setAttribute("role", "columnheader");
      button.addEventListener("click", () => this.sortBy(index));
      cell.append(button);
      head.append(cell);
    });
    this.head = head;
    this.space = diel.make("div", "diel-space");
    const widths = columns.map((column) => Number(/\d+/.exec(column.width)[0]) + diel.Table.GAP);
    const least = widths.reduce((sum, width) => sum + width, diel.Table.GAP);
    for (const part of [head, this.space]) part.style.minWidth = `${least}px`;
    this.scroller.append(head, this.space);
    container.replaceChildren(bar, this.scroller);
    this.changed();
  }

  show(words) {
    this.words = words.toLowerCase();
    this.tests = this.words.split(/\s+/).filter(Boolean).map((word) => this.testOf(word));
    if (this.filter.value.toLowerCase() !== this.words) this.filter.value = words;
    this.scroller.scrollTop = 0;
    this.changed();
  }

  sortBy(index) {
    const down = this.sorting.column === index && !this.sorting.down;
    this.sorting = { column: index, down };
    this.changed();
  }

  // Returns the test of a row: a word is searched in all columns, accuracy>0.9 compares one.
  testOf(word) {
    const [, title, sign, text] = /^([^<>=]+)(>=|<=|>|<|=)(.+)$/.exec(word) ?? [];
    const column = this.columns.find((each) => each.title.toLowerCase() === title);
    if (!column) return (key) => this.searched.get(key).includes(word);
    const number = Number(text);
    return (key, row) => {
      const value = column.order(key, row);
      if (typeof value !== "number") return sign === "=" && String(value).toLowerCase() === text;
      return diel.Table.COMPARE[sign](value, number);
    };
  }

  // Only rows with these keys are shown; null for all.
  choose(keys) {
    this.chosen = keys && new Set(keys.map(String));
    this.changed();
  }

  apply(change) {
    for (const key of change.gone) {
      this.rows.delete(String(key));
      this.searched.delete(String(key));
    }
    const fixed = this.columns.filter((column) => !column.moves);
    for (const [key, row] of Object.entries(change.set)) {
      this.rows.set(key, row);
      this.searched.set(key, fixed.map((column) => column.cell(key, row)).join("\n").toLowerCase());
    }
    this.changed();
  }

  changed() {
    this.isStale = true;
    this.redraw();
  }

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.draw();
    });
  }

  arrange() {
    const { column, down } = this.sorting;
    const { order } = this.columns[column];
    const entries = [...this.rows].filter(([key, row]) =>
      (this.chosen?.has(key) ?? true) && this.tests.every((fits) => fits(key, row)));
    const keyed = entries.map((entry) => [order(...entry), entry]);
    keyed.sort(([a], [b]) => diel.order(a, b) * (down ? -1 : 1));
    this.shown = keyed.map(([, entry]) => entry);
    this.isStale = false;
    this.space.style.height = `${this.shown.length * diel.Table.ROW}px`;
    this.scroller.setAttribute("aria-rowcount", String(this.shown.length + 1));
    const all = this.rows.size;
    this.count.textContent = this.shown.length === all ? `${all}` : `${this.shown.length} of ${all}`;
    [...this.head.children].forEach((button, index) => {
      const says = index !== column ? "none" : down ? "descending" : "ascending";
      button.setAttribute("aria-sort", says);
    });
  }

  draw() {
    if (this.isStale) this.arrange();
    const height = diel.Table.ROW;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / height) - 3);
    const count = Math.ceil(this.scroller.clientHeight / height) + 6;
    const rows = this.shown.slice(first, first + count).map(([key, row], index) => {
      const line = diel.make("div", "diel-row");
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", String(first + index + 2));
      line.style.gridTemplateColumns = this.template;
      line.style.transform = `translateY(${(first + index) * height}px)`;
      for (const column of this.columns) {
        const text = column.cell(key, row);
        const cell = diel.make("span", column.state ? `diel-state diel-${text}` : "");
        if (column.link) cell.append(diel.make("a", "", text));
        else cell.textContent = text;
        if (column.link) cell.firstChild.href = column.link(key);
        cell.setAttribute("role", "cell");
        cell.title = text;
        line.append(cell);
      }
      return line;
    });
    this.space.replaceChildren(...rows);
  }
};

// -- the page of a run ---------------------------------------------------------------------------

diel.watch = (() => {
  const LOG_LENGTH = 400_000;
  const COLOURS = { module: "--diel-blue", wait: "--diel-orange", transfer: "--diel-purple",
                    tuples: "--diel-sky" };
  let head = null;
  let ahead_s = 0; // by how much the server's clock is ahead of the browser's
  let tables = null;
  let groups = {};
  let lanes = null;

  const now_s = () => Date.now() / 1000 + ahead_s;
  const since = (moment_s) => (moment_s ? diel.duration((head?.ended_s ?? now_s()) - moment_s) : "");

  const begin = () => {
    const since_column = (place) => ({ title: "since", width: "90px", moves: true,
      cell: (key, row) => since(row[place]), order: (key, row) => row[place] || Infinity });
    const text_column = (title, width, place) => ({ title, width,
      cell: (key, row) => String(row[place]), order: (key, row) => row[place] });
    tables = {
      copies: new diel.Table(diel.part("copies"), [
        { title: "copy", width: "minmax(110px, 1fr)", cell: (key) => key,
          order: (key) => key.replace(/\d+/g, (number) => number.padStart(9, "0")) },
        text_column("group", "minmax(80px, 1fr)", 0),
        text_column("ranks", "110px", 1),
        { title: "runs for", width: "90px", moves: true, cell: (key, row) => since(row[2]),
          order: (key, row) => -row[2] },
        { title: "attempt", width: "70px", cell: (key, row) => String(row[3]),
          order: (key, row) => row[3] },
        text_column("waits for", "minmax(140px, 2fr)", 4),
        since_column(5),
      ], "copies"),
      ranks: new diel.Table(diel.part("ranks"), [
        { title: "rank", width: "64px", cell: (key) => key, order: (key) => Number(key) },
        text_column("host", "minmax(70px, 1fr)", 0),
        text_column("what", "minmax(110px, 1fr)", 1),
        { ...text_column("state", "84px", 2), state: true },
        text_column("waits for", "minmax(140px, 2fr)", 3),
        since_column(4),
      ], "ranks"),
    };
    setInterval(tick, 1000);
    new ResizeObserver(() => drawTimeline()).observe(diel.part("timeline"));
    document.addEventListener("click", choose);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") choose(event);
    });
  };

  // A group that is chosen in the graph filters the tables, and the server shows what it has left.
  const choose = (event) => {
    const group = event.target.closest?.(".diel-graph [data-group]");
    if (!group) return;
    const { group: name, module } = group.dataset;
    const isChosen = group.classList.contains("selected");
    document.querySelectorAll(".diel-graph .selected").forEach((each) => {
      each.classList.remove("selected");
    });
    if (!isChosen) group.classList.add("selected");
    tables.copies.show(isChosen ? "" : module ? `${module}.` : name);
    emitEvent("diel_box", isChosen ? null : { group: name, module: module ?? "" });
    event.preventDefault();
  };

  const tick = () => {
    if (!head || document.hidden) return;
    showClock();
    if (head.ended_s === null) Object.values(tables).forEach((table) => table.redraw());
  };

  const showClock = () => {
    const lasted = head.started_s ? since(head.started_s) : "";
    const ranks = head.ranks ? `${head.ranks.toLocaleString("en")} ranks` : "";
    const resumed = head.resumed ? `resumed ${head.resumed} times` : "";
    const part = head.part ? `a part: ${head.part}` : "";
    const current = head.up_to_date ? `${head.up_to_date} up to date` : "";
    const texts = [ranks, lasted, resumed.replace("1 times", "once"), part, current];
    diel.part("facts").textContent = texts.filter(Boolean).join(" · ");
  };

  const showHead = () => {
    diel.part("copies").closest(".diel-panel").hidden = head.ended_s !== null;
    const state = diel.part("state");
    const words = head.is_starting ? "starting the MPI ranks" : head.is_stopping ? "stopping" : head.state;
    state.textContent = words;
    state.className = `diel-badge diel-state diel-${head.state.replace(" ", "-")}`;
    showClock();
  };

  const showAlerts = (alerts) => {
    diel.part("alerts").replaceChildren(...alerts.map((text) => diel.make("p", "diel-alert", text)));
  };

  const showGroups = () => {
    for (const element of document.querySelectorAll(".diel-graph g.group")) {
      const [state, words] = groups[element.dataset.group] ?? ["", ""];
      element.classList.remove("running", "finished", "failed", "waiting", "stopped", "skipped");
      if (state) element.classList.add(state);
      const label = element.querySelector(":scope > .state");
      if (label && label.textContent !== words) label.textContent = words;
    }
    const rows = Object.entries(groups).map(([name, [state, words]]) => {
      const row = diel.make("li");
      row.append(diel.make("span", "", name), " ",
        diel.make("span", `diel-state diel-${state}`, words));
      return row;
    });
    // Groups are listed if the picture lacks one: its file may have changed, or be none to draw.
    const drawn = [...document.querySelectorAll(".diel-graph g.group")];
    const names = new Set(drawn.map((element) => element.dataset.group));
    diel.part("groups").hidden = Object.keys(groups).every((name) => names.has(name));
    diel.part("groups").replaceChildren(...rows);
  };

  const NO_BARS = "Nothing has said how far it is: a module does by ctx.progress(done, total), "
    + "or with results.";
  const showBars = (bars) => {
    if (!bars.length) diel.part("bars").replaceChildren(diel.make("p", "diel-none", NO_BARS));
    else diel.part("bars").replaceChildren(...bars.map(([who, done, total, text]) => {
      const row = diel.make("div", "diel-bar");
      row.append(diel.make("span", "diel-bar-name", who));
      if (total) {
        const bar = diel.make("progress");
        bar.max = total;
        bar.value = done;
        bar.setAttribute("aria-label", who);
        row.append(bar);
      }
      const short = (number) => Number(number.toPrecision(6)).toLocaleString("en");
      const reached = total ? `${short(done)} of ${short(total)}` : done ? short(done) : "";
      row.append(diel.make("span", "diel-bar-text", [reached, text].filter(Boolean).join(", ")));
      return row;
    }));
  };

  const showServers = (servers) => {
    diel.part("servers").replaceChildren(...servers.map(([rank, text, share]) => {
      const row = diel.make("div", "diel-bar");
      const bar = diel.make("progress");
      bar.max = 1;
      bar.value = share;
      bar.setAttribute("aria-label", `memory of the tuple server on rank ${rank}`);
      row.append(diel.make("span", "diel-bar-name", `tuple server on rank ${rank}`), bar,
        diel.make("span", "diel-bar-text", text));
      return row;
    }));
  };

  const showMessages = (messages) => {
    diel.part("messages").replaceChildren(...messages.map(([level, who, text]) =>
      diel.make("p", "diel-message", `${level.toLowerCase()} from ${who}: ${text}`)));
  };

  const showReasons = (reasons) => {
    diel.part("reasons").replaceChildren(...reasons.map(([who, text]) => {
      const row = diel.make("p", "diel-message");
      row.append(diel.make("strong", "", who), ` ${text}`);
      return row;
    }));
    diel.part("reasons").closest(".diel-panel").hidden = !reasons.length;
  };

  const showTimes = (rows) => {
    const table = diel.make("table", "diel-times");
    rows.forEach((cells, index) => {
      const row = diel.make("tr");
      row.append(...cells.map((text) => diel.make(index ? "td" : "th", "", text)));
      table.append(row);
    });
    diel.part("times").replaceChildren(...(rows.length ? [table] : []));
    diel.part("times").closest(".diel-panel").hidden = !rows.length;
  };

  // Shows what has changed since the last call: see `difference` in diel/gui/snapshot.py.
  const apply = (moment_s, changed) => {
    if (!tables) begin();
    ahead_s = moment_s - Date.now() / 1000;
    if (changed.head) {
      head = changed.head;
      showHead();
    }
    if (changed.alerts) showAlerts(changed.alerts);
    if (changed.groups) {
      for (const name of changed.groups.gone) delete groups[name];
      Object.assign(groups, changed.groups.set);
      showGroups();
    }
    if (changed.copies) tables.copies.apply(changed.copies);
    if (changed.ranks) tables.ranks.apply(changed.ranks);
    if (changed.reasons) showReasons(changed.reasons);
    if (changed.servers) showServers(changed.servers);
    if (changed.bars) showBars(changed.bars);
    if (changed.messages) showMessages(changed.messages);
    if (changed.times) showTimes(changed.times);
  };

  // The only text that is set as HTML: diel/workflow/svg.py has escaped the names in it.
  const picture = (svg) => {
    diel.part("picture").innerHTML = svg;
    showGroups();
  };

  const log = (text, follows) => {
    const place = diel.part("log");
    const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 30;
    if (!follows) place.textContent = "";
    place.append(text);
    if (place.textContent.length > LOG_LENGTH) {
      place.textContent = place.textContent.slice(-LOG_LENGTH / 2);
    }
    if (isAtEnd || !follows) place.scrollTop = place.scrollHeight;
  };

  const showLog = () => diel.part("log").scrollIntoView({ block: "center" });

  // -- the timeline: a canvas, and a text on what is under the mouse -----------------------------

  const LANE = 18;
  const LEFT = 64;
  const BOTTOM = 22;

  const timeline = (picture) => {
    lanes = picture;
    drawTimeline();
  };

  const drawTimeline = () => {
    const canvas = diel.part("timeline").querySelector("canvas");
    if (!lanes || !canvas) return;
    const style = getComputedStyle(document.body);
    const width = Math.max(200, canvas.parentElement.clientWidth);
    const height = lanes.ranks.length * LANE + BOTTOM;
    const scale = globalThis.devicePixelRatio || 1;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px sans-serif";
    pen.textBaseline = "middle";
    const step = (width - LEFT) / lanes.steps;
    const ink = style.getPropertyValue("--diel-text");
    lanes.ranks.forEach(([rank, boxes], index) => {
      const top = index * LANE;
      pen.fillStyle = style.getPropertyValue(index % 2 ? "--diel-ground" : "--diel-panel");
      pen.fillRect(0, top, width, LANE);
      pen.fillStyle = ink;
      pen.fillText(`rank ${rank}`, 4, top + LANE / 2);
      for (const [first, count, kind] of boxes) {
        const inset = kind === "module" ? 3 : 6;
        pen.fillStyle = style.getPropertyValue(COLOURS[kind]);
        pen.fillRect(LEFT + first * step, top + inset, Math.max(1, count * step - 0.5), LANE - 2 * inset);
      }
    });
    pen.fillStyle = ink;
    const marks = Math.max(2, Math.floor((width - LEFT) / 110));
    for (let mark = 0; mark <= marks; mark += 1) {
      const share = mark / marks;
      const moment_s = lanes.start_s + share * (lanes.end_s - lanes.start_s) - lanes.origin_s;
      pen.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
      pen.fillText(`${moment_s.toFixed(lanes.end_s - lanes.start_s < 20 ? 1 : 0)} s`,
        LEFT + share * (width - LEFT), height - BOTTOM / 2);
    }
    canvas.onmousemove = (event) => {
      const [, boxes] = lanes.ranks[Math.floor(event.offsetY / LANE)] ?? [0, []];
      const at = (event.offsetX - LEFT) / step;
      const under = boxes.filter(([first, count]) => at >= first && at < first + count);
      canvas.title = under.map(([, , , name]) => name).join(" / ");
    };
  };

  return { apply, log, picture, showLog, timeline };
})();
// Tells the server whether the page is light or dark, now and at each change.
diel.followTheme = () => {
  let last = null;
  const tell = () => {
    const dark = document.body.classList.contains("body--dark");
    if (dark !== last) emitEvent("diel_theme", dark);
    last = dark;
  };
  new MutationObserver(tell).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  tell();
};

// What the framework leaves without a name: menus and lists of choices stand outside of all landmarks
// when they open, as children of the body.
new MutationObserver(() => {
  for (const menu of document.querySelectorAll("body > [id^=q-portal--menu]:not([role])")) {
    menu.setAttribute("role", "region");
    menu.setAttribute("aria-label", "Choices");
  }
  // Between a list of choices and its options nothing else may take the focus.
  for (const list of document.querySelectorAll("[role=listbox] > .q-virtual-scroll__content[tabindex]")) {
    list.removeAttribute("tabindex");
  }
}).observe(document.documentElement, { childList: true, subtree: true });

// -- composing --------------------------------------------------------------------------------

// Names the text field of the editor once it is there, and lets the keyboard reach it.
diel.nameEditor = (tries = 0) => {
  const field = document.querySelector(".compose-editor .cm-content");
  if (field) {
    field.setAttribute("aria-label", "The workflow file");
    field.tabIndex = 0;
  } else if (tries < 200) setTimeout(() => diel.nameEditor(tries + 1), 50);
};

// Keeps the keyboard's focus at an element of the box if that is built anew after an edit.
const keepFocusIn = (box, selector, key) => {
  let focused = null;
  document.addEventListener("focusin", (event) => {
    const found = box.contains(event.target) && event.target.closest(selector);
    focused = found ? key(found) : null;
  });
  new MutationObserver(() => {
    if (focused === null || document.activeElement !== document.body) return;
    const same = [...box.querySelectorAll(selector)].find((found) => key(found) === focused);
    same?.focus({ preventScroll: true });
  }).observe(box, { childList: true, subtree: true });
};

// Keeps longer texts than this from being pasted: the server would not read them.
diel.limitEditor = (longest) => {
  const refuse = (event) => {
    const added = (event.clipboardData ?? event.dataTransfer)?.getData("text/plain").length ?? 0;
    if (added <= longest) return;
    event.preventDefault();
    event.stopPropagation();
    emitEvent("diel_too_long", added);
  };
  document.addEventListener("paste", refuse, { capture: true });
  document.addEventListener("drop", refuse, { capture: true });
};

// Choosing in the graph by mouse and keyboard, and keys for edits. The listeners work as soon as the
// page can be seen: keys that are pressed before the server has answered are sent to it then.
diel.hasEdits = false;
(() => {
  const graph = () => document.getElementById("compose-graph");
  const emit = (name, value) => window.emitEvent(name, value);
  const node = (target) => target instanceof Element && graph()?.contains(target)
    && target.closest("[tabindex][data-group]");
  const key = (found) => [found.dataset.group, found.dataset.module ?? null];
  const choose = (found) => {
    emit("diel_choose", found ? { group: found.dataset.group, module: found.dataset.module ?? "" } : {});
  };
  diel.keepFocus = () => {
    keepFocusIn(graph(), "[tabindex][data-group]", (found) => key(found).join("\n"));
    keepFocusIn(document.getElementById("compose-form"), "[aria-label]", (found) => found.ariaLabel);
  };
  document.addEventListener("click", (event) => {
    if (graph()?.contains(event.target)) choose(node(event.target));
  });
  document.addEventListener("keydown", (event) => {
    const found = node(event.target);
    if (!found) return;
    const all = [...graph().querySelectorAll("[tabindex]")];
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") choose(found);
    else if (event.key === "Delete") emit("diel_key", "remove");
    else if (event.key === "Escape") choose(null);
    else if (step) all[(all.indexOf(found) + step + all.length) % all.length].focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (!graph() || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    const letter = event.key.toLowerCase();
    const typing = event.target.closest?.("input, textarea, [contenteditable='true']");
    if (letter === "s") emit("diel_key", "save");
    else if (letter === "z" && !typing) emit("diel_key", event.shiftKey ? "redo" : "undo");
    else if (letter === "y" && !typing) emit("diel_key", "redo");
    else return;
    event.preventDefault();
  });
  window.addEventListener("beforeunload", (event) => {
    if (diel.hasEdits) event.preventDefault();
  });
})();
