{# Draws curves with uPlot (MIT, see uplot.js), sorts tables, and lets people pause a page that loads
   itself again. Everything is on the page without it, and what it shows as text never is HTML. #}
{% include "uplot.js" %}

(() => {
"use strict";
const ink = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const scale = logarithmic => ({distr: logarithmic ? 3 : 1, log: 2});
const short = (value, unknown = "–") => value == null ? unknown : String(+value.toPrecision(4));

function draw(figure, data) {
  const frame = figure.querySelector(".frame");
  const narrow = frame.clientWidth < 400;
  const axis = {stroke: ink("muted"), grid: {stroke: ink("grid")}, ticks: {stroke: ink("grid")}};
  const series = data.series.map(one => ({
    label: one.name,
    stroke: ink(one.colour),
    width: 2,
    dash: one.kind == "reference" ? [5, 4] : [],
    spanGaps: true,
    value: (_, value) => short(value),
    paths: one.kind == "dots" ? () => null
      : one.kind == "step" ? uPlot.paths.stepped({align: 1}) : uPlot.paths.linear(),
    points: {show: one.kind == "dots", size: 4, fill: ink(one.colour)},
  }));
  const options = {
    width: frame.clientWidth,
    height: narrow ? 240 : 320,
    scales: {x: {time: false, ...scale(data.logs[0])}, y: scale(data.logs[1])},
    series: [{label: data.x, value: (_, value) => short(value)}, ...series],
    axes: [
      {...axis, label: data.x},
      {...axis, label: data.y, size: 60, values: (_, values) => values.map(one => short(one, ""))},
    ],
    cursor: {drag: {x: true, y: true, uni: 20}},
  };
  const columns = data.series.map(one => [one.x, one.y]);
  const holder = document.createElement("div");
  holder.className = "zoom";
  holder.tabIndex = 0;
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-label", "Curves: drag to zoom, double-click or Escape to see all, "
    + "arrow keys to read values");
  frame.after(holder);
  const plot = new uPlot(options, uPlot.join(columns), holder);
  frame.hidden = true;
  let place = -1;
  holder.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (event.key == "Escape") plot.setData(plot.data);
    if (!step) return;
    place = Math.min(Math.max(place + step, 0), plot.data[0].length - 1);
    plot.setCursor({left: plot.valToPos(plot.data[0][place], "x"), top: 10});
    event.preventDefault();
  });
  return {plot, holder, frame};
}

let drawn = [];
function drawAll() {
  for (const {plot, holder, frame} of drawn) { plot.destroy(); holder.remove(); frame.hidden = false; }
  drawn = [...document.querySelectorAll("figure")].flatMap(figure => {
    const data = figure.querySelector('script[type="application/json"]');
    return data ? [draw(figure, JSON.parse(data.textContent))] : [];
  });
}
drawAll();
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", drawAll);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth != width) { width = innerWidth; drawAll(); } });
addEventListener("beforeprint", () => drawn.forEach(one => {
  one.frame.hidden = false;
  one.holder.hidden = true;
}));
addEventListener("afterprint", drawAll);

const read = cell => {
  const text = cell.dataset.value ?? cell.textContent;
  const number = Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
};
for (const title of document.querySelectorAll(".scroll th")) {
  const button = document.createElement("button");
  button.append(...title.childNodes);
  title.append(button);
  button.addEventListener("click", () => {
    const rows = title.closest("table").tBodies[0];
    const up = title.getAttribute("aria-sort") != "ascending";
    for (const other of title.parentNode.children) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", up ? "ascending" : "descending");
    const sorted = [...rows.rows].sort((a, b) => {
      const [x, y] = [a, b].map(row => read(row.cells[title.cellIndex]));
      const order = typeof x == typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x == "number" ? -1 : 1;
      return up ? order : -order;
    });
    rows.append(...sorted);
  });
}

const pause = document.querySelector("#pause");
if (pause) {
  const timer = setTimeout(() => location.reload(), 1000 * pause.dataset.seconds);
  pause.hidden = false;
  pause.addEventListener("click", () => {
    if (pause.getAttribute("aria-pressed") == "true") return location.reload();
    clearTimeout(timer);
    pause.setAttribute("aria-pressed", "true");
  });
}
})();
