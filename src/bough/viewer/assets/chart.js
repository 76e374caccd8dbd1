// A line chart: thin lines as measured, a thick one through them where there are many points.
import { h, svg } from "./dom.js";
import { number } from "./format.js";

const W = 420;
const H = 190;
const BOX = { left: 52, right: 12, top: 10, bottom: 24 };
const SMOOTH_FROM = 40;
const MOST = 1200;

export function chart(title, series) {
  const all = series.flatMap((one) => one.points);
  if (!all.length) return null;
  const [x0, x1] = spread(all.map((p) => p[0]));
  const [y0, y1] = spread(all.map((p) => p[1]));
  const x = (v) => BOX.left + ((v - x0) / (x1 - x0)) * (W - BOX.left - BOX.right);
  const y = (v) => H - BOX.bottom - ((v - y0) / (y1 - y0)) * (H - BOX.top - BOX.bottom);
  const last = series.map((one) => `${one.name === title ? "" : `${one.name} `}${number(one.points.at(-1)[1])}`).join(", ");
  const readout = h("span", { class: "readout" }, last);
  const cursor = svg("line", { class: "cursor", y1: BOX.top, y2: H - BOX.bottom, visibility: "hidden" });
  const lines = series.flatMap((one, i) => {
    const points = thin(one.points);
    const many = points.length >= SMOOTH_FROM && noisy(points);
    return [
      svg("path", { d: path(points, x, y), class: `line series-${i} ${many ? "raw" : ""}` }),
      many ? svg("path", { d: path(smooth(points), x, y), class: `line series-${i}` }) : null,
      points.length === 1 ? svg("circle", { cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: `point series-${i}` }) : null,
    ];
  });
  const drawing = svg("svg", {
    viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}: from ${number(series[0].points[0][1])} at step ${series[0].points[0][0]} to ${number(series[0].points.at(-1)[1])} at step ${series[0].points.at(-1)[0]}`,
    on: { pointermove: (event) => point(event, drawing), pointerleave: () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = last; } },
  },
    ticks(y0, y1).map((v) => [svg("line", { x1: BOX.left, x2: W - BOX.right, y1: y(v), y2: y(v), class: "grid" }), svg("text", { x: BOX.left - 6, y: y(v) + 4, class: "tick end" }, tickText(v, y1 - y0))]),
    ticks(x0, x1, 5).filter(Number.isInteger).map((v) => svg("text", { x: x(v), y: H - 7, class: "tick middle" }, number(v))),
    lines.filter(Boolean), cursor,
  );
  function point(event, target) {
    const box = target.getBoundingClientRect();
    const wanted = x0 + (((event.clientX - box.left) / box.width) * W - BOX.left) / (W - BOX.left - BOX.right) * (x1 - x0);
    const near = series.map((one) => one.points.reduce((best, p) => (Math.abs(p[0] - wanted) < Math.abs(best[0] - wanted) ? p : best)));
    cursor.setAttribute("x1", x(near[0][0]));
    cursor.setAttribute("x2", x(near[0][0]));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `step ${near[0][0]}: ${series.map((one, i) => `${one.name === title ? "" : `${one.name} `}${number(near[i][1])}`).join(", ")}`;
  }
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("b", {}, title), readout),
    drawing,
    series.length > 1 ? h("p", { class: "legend" }, series.map((one, i) => h("span", {}, h("span", { class: `swatch series-${i}` }), ` ${one.name}`))) : null,
  );
}

function spread(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low === high) return [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
  return [low, high];
}

function ticks(low, high, wanted = 4) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) ?? raw;
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9 && found.length < 12; v += step) found.push(+v.toPrecision(12));
  return found;
}

// As many digits as it takes to tell one tick from the next.
function tickText(v, range) {
  const digits = Math.max(0, 1 - Math.floor(Math.log10(range)));
  return digits > 4 || Math.abs(v) >= 1e5 ? number(v) : v.toFixed(digits).replace("-", "−").replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

// A schedule is drawn as it is; only what jumps up and down gets a line through its middle.
function noisy(points) {
  let turns = 0;
  for (let i = 2; i < points.length; i++) if ((points[i][1] - points[i - 1][1]) * (points[i - 1][1] - points[i - 2][1]) < 0) turns++;
  return turns > points.length / 5;
}

function path(points, x, y) {
  return points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
}

function thin(points) {
  const step = Math.ceil(points.length / MOST);
  return step === 1 ? points : points.filter((_, i) => i % step === 0 || i === points.length - 1);
}

function smooth(points) {
  const keep = Math.exp(-12 / points.length);
  let mean = points[0][1];
  return points.map(([step, value]) => { mean = keep * mean + (1 - keep) * value; return [step, mean]; });
}
