// A line chart over the steps of training: drawn at the size it is shown, zoomed by dragging across it.
import { h, svg } from "./dom.js";
import { number } from "./format.js";
import { axis, labels, noisy, smooth } from "./scale.js";

const H = 200;
const TOP = 10;
const BOTTOM = 26;
const RIGHT = 14;
const MOST = 1200;
const DIGIT = 6.7;

// series: { name, points, slot }, the slot being its colour. view: { smoothing, from, to, zoom }.
export function chart(title, series, view) {
  const shown = series.map((one) => ({ ...one, points: one.points.filter(([step]) => step >= view.from && step <= view.to) })).filter((one) => one.points.length);
  if (!shown.length) return null;
  const readout = h("span", { class: "readout" });
  const place = h("div", { class: "plot" });
  const rest = () => { readout.textContent = said(title, shown, shown.map((one) => one.points.at(-1))); };
  rest();
  let width = 0;
  const observer = new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width || now < 40) return;
    width = now;
    place.replaceChildren(plot(title, shown, view, width, readout, rest));
  });
  observer.observe(place);
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("b", {}, title), readout),
    place,
    series.length > 1 ? h("p", { class: "legend" }, series.map((one) => h("span", {}, h("span", { class: `swatch series-${one.slot}` }), ` ${one.name}`))) : null,
  );
}

function plot(title, series, view, width, readout, rest) {
  const all = series.flatMap((one) => one.points);
  const down = axis(...extent(all.map((p) => p[1])), Math.floor((H - TOP - BOTTOM) / 38));
  const words = labels(down);
  const left = Math.ceil(DIGIT * Math.max(...words.map((one) => one.length))) + 12;
  const [x0, x1] = widen(...extent(all.map((p) => p[0])));
  const across = axis(x0, x1, Math.floor((width - left - RIGHT) / 58), 1);
  const steps = labels(across);
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - RIGHT);
  const y = (v) => H - BOTTOM - ((v - down.low) / (down.high - down.low)) * (H - TOP - BOTTOM);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const chosen = svg("rect", { class: "chosen-range", y: TOP, height: H - TOP - BOTTOM, width: 0 });
  const [first, last] = [series[0].points[0], series[0].points.at(-1)];
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${H}`, width, height: H, role: "img",
    "aria-label": `${title}: from ${number(first[1])} at step ${first[0]} to ${number(last[1])} at step ${last[0]}`,
  },
    down.ticks.map((v, i) => [svg("line", { x1: left, x2: width - RIGHT, y1: y(v), y2: y(v), class: "grid" }), svg("text", { x: left - 7, y: y(v) + 4, class: "tick end" }, words[i])]),
    across.ticks.map((v, i) => (v < x0 || v > x1 ? null : svg("text", { x: x(v), y: H - 8, class: "tick middle" }, steps[i]))),
    series.map((one) => curve(one, view.smoothing, x, y)), chosen, cursor,
  );
  point(drawing, { x, stepAt: (place) => x0 + ((place - left) / (width - left - RIGHT)) * (x1 - x0), title, series, view, readout, rest, cursor, chosen });
  return drawing;
}

function curve({ points: found, slot }, smoothing, x, y) {
  const points = thin(found);
  const soft = smoothing > 0 && noisy(points);
  const line = (these, kind) => svg("path", { d: these.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join(""), class: `line series-${slot} ${kind}` });
  if (points.length === 1) return svg("circle", { cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: `point series-${slot}` });
  return soft ? [line(points, "raw"), line(smooth(points, smoothing), "smooth")] : line(points, "");
}

// Moving shows the values at a step, dragging chooses a range of steps, a double click shows all of them again.
function point(drawing, { x, stepAt, title, series, view, readout, rest, cursor, chosen }) {
  let begun = null;
  const place = (event) => event.clientX - drawing.getBoundingClientRect().left;
  const show = (from, to) => { chosen.setAttribute("x", Math.min(from, to)); chosen.setAttribute("width", Math.abs(to - from)); };
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    begun = place(event);
    try { drawing.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
  });
  drawing.addEventListener("pointermove", (event) => {
    const wanted = stepAt(place(event));
    const near = series.map((one) => one.points.reduce((best, p) => (Math.abs(p[0] - wanted) < Math.abs(best[0] - wanted) ? p : best)));
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, x(near[0][0]));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `step ${near[0][0]}: ${said(title, series, near)}`;
    if (begun !== null) show(begun, place(event));
  });
  drawing.addEventListener("pointerup", (event) => {
    const [from, to] = [begun, place(event)].sort((a, b) => a - b).map(stepAt);
    const far = begun !== null && Math.abs(place(event) - begun) > 8;
    begun = null;
    show(0, 0);
    if (far) view.zoom(Math.floor(from), Math.ceil(to));
  });
  drawing.addEventListener("pointercancel", () => { begun = null; show(0, 0); });
  drawing.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); rest(); });
  drawing.addEventListener("dblclick", () => view.zoom(null, null));
}

function said(title, series, points) {
  return series.map((one, i) => `${one.name === title ? "" : `${one.name} `}${number(points[i][1])}`).join(", ");
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const v of values) [low, high] = [Math.min(low, v), Math.max(high, v)];
  return [low, high];
}

function widen(low, high) {
  return low === high ? [low - 1, high + 1] : [low, high];
}

function thin(points) {
  const step = Math.ceil(points.length / MOST);
  return step === 1 ? points : points.filter((_, i) => i % step === 0 || i === points.length - 1);
}
