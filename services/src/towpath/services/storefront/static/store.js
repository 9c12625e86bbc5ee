// The live parts of the pages. Without it they show what was true when they were made.
"use strict";

// An order's page shows a step within a second of its time.
const FAST_MS = 300;
// After a minute without a change, a step can only follow from somebody's action.
const SLOW_MS = 1000;
const PATIENCE_MS = 60000;

function live(place) {
  let shown = null;
  let changedAt = Date.now();

  async function refresh() {
    try {
      const response = await fetch(place.dataset.live, { cache: "no-store" });
      if (response.ok) show(await response.text());
      place.classList.toggle("stale", !response.ok);
    } catch {
      place.classList.add("stale");
    }
    // A return loads the page again; a settled order does not change by itself.
    if (!place.querySelector("[data-settled]")) {
      setTimeout(refresh, Date.now() - changedAt > PATIENCE_MS ? SLOW_MS : FAST_MS);
    }
  }

  function show(text) {
    if (text === shown) return;
    const focused = place.contains(document.activeElement) && document.activeElement.id;
    // A list that somebody has open is not replaced.
    if (document.activeElement?.tagName === "SELECT" && shown !== null) return;
    shown = text;
    changedAt = Date.now();
    place.innerHTML = text;
    if (focused) document.getElementById(focused)?.focus();
    document.querySelectorAll("[data-read]").forEach(again);
  }

  refresh();
}

// Reads one copy of the order: first by its LSN, later as it changes.
async function read(place) {
  const answer = place.querySelector(".answer");
  try {
    const response = await fetch(place.dataset.read, { cache: "no-store" });
    const found = await response.json();
    if (!response.ok) throw new Error(found.detail);
    if (found.after_ms !== null && !place.dataset.seen) {
      place.dataset.seen = `, your write was visible after ${found.after_ms}\u00a0ms`;
    }
    const status = found.status ?? "not there yet";
    answer.textContent = status + (place.dataset.seen ?? "");
    place.classList.add("read");
  } catch (error) {
    answer.textContent = error.message;
  }
  place.dataset.done = "yes";
}

// The copies follow the saga a moment later.
function again(place) {
  if (place.dataset.done !== "yes") return;
  for (const delay of [250, 1000, 3000]) setTimeout(() => read(place), delay);
}

document.querySelectorAll("[data-live]").forEach(live);
document.querySelectorAll("[data-read]").forEach(read);
