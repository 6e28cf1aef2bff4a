"use strict";

// What the pages do in the browser. Text from a run is always set as textContent, never as HTML.
globalThis.diel = {};
