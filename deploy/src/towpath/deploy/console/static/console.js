// Draws the plots: each has the names of its numbers, and asks for them every few seconds.
"use strict";
const EVERY_MS = 3000;
const HEIGHT = 220;
const HUES = ["--water", "--warning", "--accent", "--bad", "--good", "--soft"];

const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function sizeText(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
}

function write(unit, value) {
  if (value === null || value === undefined) return "";
  if (unit === "B") return sizeText(value);
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(2).replace(/\.?0+$/, "")} ${unit}`;
}

function timeText(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

function capsOf(element) {
  return (element.dataset.caps || "").split(",").filter(Boolean).map(Number);
}

// A cap that is far above the curve would flatten it.
function capsNear(element, columns) {
  const highest = Math.max(0, ...columns.flat().filter((value) => value !== null));
  return capsOf(element).filter((cap) => cap <= highest * 4);
}

function options(element, labels, caps) {
  const unit = element.dataset.unit;
  const axis = { stroke: tone("--soft"), grid: { stroke: tone("--line"), width: 1 }, ticks: { show: false } };
  const curves = labels.map((label, number) => ({
    label, stroke: tone(HUES[number % HUES.length]), width: 2, points: { show: false },
    value: (_plot, value) => write(unit, value),
  }));
  const capCurves = caps.map((cap) => ({
    label: `cap ${write(unit, cap)}`, stroke: tone("--bad"), width: 1.5, dash: [6, 5], points: { show: false },
    value: (_plot, value) => write(unit, value),
  }));
  return {
    width: element.clientWidth, height: HEIGHT, cursor: { y: false },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.15, 1)] } },
    axes: [{ ...axis, space: 90, values: (_plot, values) => values.map(timeText) }, { ...axis, size: 78, values: (_plot, values) => values.map((value) => write(unit, value)) }],
    series: [{ label: "at", value: (_plot, at) => (at === null ? "" : timeText(at)) }, ...curves, ...capCurves],
  };
}

async function draw(element) {
  const names = element.dataset.names;
  const answer = await fetch(`/api/samples?names=${encodeURIComponent(names)}`);
  if (!answer.ok) return;
  const found = await answer.json();
  const columns = names.split(",").map((name) => found.values[name]);
  const caps = capsNear(element, columns);
  const data = [found.at, ...columns, ...caps.map((cap) => found.at.map(() => cap))];
  const shape = `${caps.length} ${element.clientWidth} ${tone("--paper")}`;
  if (element.plot && element.plotShape === shape) {
    element.plot.setData(data);
    return;
  }
  if (element.plot) element.plot.destroy();
  element.plotShape = shape;
  element.plot = new uPlot(options(element, element.dataset.labels.split(","), caps), data, element);
}

function drawAll() {
  if (document.hidden) return;
  for (const element of document.querySelectorAll(".plot")) draw(element).catch(() => {});
}

drawAll();
setInterval(drawAll, EVERY_MS);
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
