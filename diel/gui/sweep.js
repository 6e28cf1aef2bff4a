"use strict";

// The table of trials on the page of a sweep.
diel.sweep = (() => {
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

  return { columns, rows, choose };
})();
