"use strict";

// Places for figures that reporters draw: says how wide each is while it can be seen, shows what was
// drawn for it, and says what is clicked or chosen there.
diel.figures = (() => {
  const LATER_MS = 50, MOST_TRIES = 100, LEAST = 3;
  const shown = new Map();
  let isLoaded = false;

  const watch = (id, tries = 0) => {
    const place = document.getElementById(id);
    if (place === null) { // the element is about to be built
      if (tries < MOST_TRIES) setTimeout(() => watch(id, tries + 1), LATER_MS);
      return;
    }
    let isSeen = false, told = 0;
    const tell = () => {
      if (!place.isConnected) { // it was built anew
        for (const observer of observers) observer.disconnect();
        watch(id);
        return;
      }
      const width = isSeen ? place.clientWidth : 0;
      if (Math.abs(width - told) < LEAST) return;
      told = width;
      place.dispatchEvent(new CustomEvent("figurewidth", { detail: width }));
    };
    const look = ([entry]) => {
      isSeen = entry.isIntersecting;
      tell();
    };
    const observers = [new IntersectionObserver(look, { rootMargin: "120px" }), new ResizeObserver(tell)];
    for (const observer of observers) observer.observe(place);
  };

  const load = (style, script) => {
    if (isLoaded) return;
    isLoaded = true;
    for (const [kind, text] of [["style", style], ["script", script]]) {
      const element = document.createElement(kind);
      element.textContent = text;
      document.head.append(element);
    }
  };

  const show = (id, html, opensTrials) => {
    const place = document.getElementById(id);
    if (place === null) return; // the page was left
    if (shown.get(id)?.root !== place) {
      shown.set(id, new DielFigures(place, {
        onChoose: (ranges) => emitEvent("diel_ranges", Object.fromEntries(ranges)),
        ...(opensTrials ? { onOpen: (trial) => emitEvent("diel_point", trial) } : {}),
      }));
    }
    shown.get(id).show(html);
  };

  return { watch, load, show };
})();
