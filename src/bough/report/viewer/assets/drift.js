// How the settings of a population drift: a dot per member, the median of each generation, and the winner's ancestors.
import { h, svg } from "./dom.js";
import { count, number, plural, shorten, words } from "./format.js";
import { axis, labels } from "./scale.js";
import { written } from "./settings.js";

const [W, H, TOP, BOTTOM, RIGHT] = [360, 200, 12, 28, 16];
const DIGIT = 6.9;
const MOST = 16; // charts

export function drift(found) {
  const names = [...new Set(found.members.flatMap((one) => Object.keys(one.settings)))].slice(0, MOST);
  const charts = names.map((name) => chart(name, found, (one) => one.settings[name]));
  if (new Set(found.members.map((one) => one.rank)).size > 1) charts.push(chart("lora_r", found, (one) => one.rank));
  const drawn = charts.filter(Boolean);
  if (!drawn.length) return [];
  return [h("h2", {}, "Drift of settings"),
    h("p", { class: "legend" }, [["circle", "a member"], ["path", "median of the generation"], ["own", found.winner ? "the winner's ancestors" : "ancestors of the fittest"]].map(([kind, text]) => h("span", {}, sample(kind), ` ${text}`))),
    h("div", { class: "charts" }, drawn)];
}

function sample(kind) {
  return svg("svg", { viewBox: "0 0 34 16", width: 34, height: 16, class: "drift", "aria-hidden": "true" },
    kind === "circle" ? svg("circle", { cx: 17, cy: 8, r: 3.5, class: "dot" }) : svg("path", { d: "M2 8H32", class: kind === "own" ? "line series-1" : "line series-0" }));
}

function chart(name, found, value) {
  const points = found.members.map((one) => ({ generation: one.generation, name: one.name, value: value(one) })).filter((one) => one.value !== undefined && one.value !== null);
  if (!points.length) return null;
  const numeric = points.every((one) => typeof one.value === "number");
  const scale = numeric ? (logarithmic(name, points) ? powers(points) : linear(points)) : choices(points);
  const left = Math.ceil(DIGIT * Math.max(...scale.ticks.map(([, text]) => text.length))) + 14;
  const last = Math.max(1, found.generations - 1);
  const x = (generation) => left + (generation / last) * (W - left - RIGHT);
  const y = (value_) => H - BOTTOM - Math.min(1, Math.max(0, scale.share(value_) || 0)) * (H - TOP - BOTTOM);
  const across = axis(0, last, Math.floor((W - left - RIGHT) / 58), 1).ticks.filter((tick) => tick <= last);
  const medians = numeric ? generations(points).map(([generation, these]) => [generation, median(these.map((one) => one.value))]) : [];
  const own = ancestry(found, points);
  const said = numeric ? `median ${number(medians[0][1])} in generation ${medians[0][0]}, ${number(medians.at(-1)[1])} in generation ${medians.at(-1)[0]}`
    : generations(points).slice(-1).map(([, these]) => counts(these).map(([value_, n]) => `${shorten(written(value_), 40)} ${count(n)}`).join(", ")).join();
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("b", {}, words(name)), h("span", { class: "readout" }, numeric ? `${scale.log ? "log scale, " : ""}median ${number(medians.at(-1)[1])}` : shorten(said, 80))),
    h("div", { class: "plot" }, svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "drift", role: "img", "aria-label": `${words(name)}: ${said}` },
      scale.ticks.map(([at, text]) => [svg("line", { x1: left, x2: W - RIGHT, y1: y(at), y2: y(at), class: "grid" }), svg("text", { x: left - 7, y: y(at) + 4, class: "tick end" }, text)]),
      across.map((generation) => svg("text", { x: x(generation), y: H - 8, class: "tick middle" }, String(generation))),
      dots(points, numeric, x, y),
      path(medians, x, y, "line series-0"), path(own, x, y, "line series-1"))));
}

// Members with the same choice are one dot, the larger the more there are.
function dots(points, numeric, x, y) {
  return generations(points).flatMap(([generation, these]) => counts(these).map(([value, n]) => svg("circle", {
    cx: x(generation), cy: y(value), r: numeric ? 3.5 : Math.min(9, 2.5 + Math.sqrt(n)), class: "dot",
  }, svg("title", {}, `generation ${generation}: ${plural(n, "member")} with ${written(value)}`))));
}

function path(points, x, y, kind) {
  if (!points.length) return null;
  return svg("path", { d: points.map(([generation, value], i) => `${i ? "L" : "M"}${x(generation).toFixed(1)} ${y(value).toFixed(1)}`).join(""), class: kind });
}

// One value per generation along the first parents of the winner, or of the fittest so far.
function ancestry(found, points) {
  const at = new Map(points.map((one) => [`${one.generation}/${one.name}`, one.value]));
  const members = new Map(found.members.map((one) => [`${one.generation}/${one.name}`, one]));
  const line = [];
  let name = found.leader;
  for (let generation = found.generations - 1; generation >= 0 && name; generation--) {
    const one = members.get(`${generation}/${name}`);
    if (!one) break;
    if (at.has(`${generation}/${name}`)) line.unshift([generation, at.get(`${generation}/${name}`)]);
    if (one.born === generation) name = one.parent;
  }
  return line;
}

function logarithmic(name, points) {
  const values = points.map((one) => one.value);
  const [low, high] = extent(values);
  return low > 0 && (name.includes("learning_rate") || high / low >= 20);
}

function powers(points) {
  const [low, high] = extent(points.map((one) => Math.log10(one.value)));
  const near = high - low < 2 ? [1, 2, 5] : [1];
  const [from, to] = high - low < 0.3 ? [low - 0.2, high + 0.2] : [low - 0.05, high + 0.05];
  const every = Math.max(1, Math.ceil((to - from) / 5));
  const ticks = [];
  for (let power = Math.floor(from); power <= to; power += every) for (const m of near) {
    const place = power + Math.log10(m);
    if (place >= from && place <= to) ticks.push([m * 10 ** power, number(+(m * 10 ** power).toPrecision(3))]);
  }
  return { log: true, ticks, share: (value) => (Math.log10(value) - from) / (to - from) };
}

function linear(points) {
  const down = axis(...extent(points.map((one) => one.value)), 4);
  const texts = labels(down);
  return { ticks: down.ticks.map((tick, i) => [tick, texts[i]]), share: (value) => (value - down.low) / (down.high - down.low) };
}

function choices(points) {
  const values = [...new Set(points.map((one) => one.value))];
  const place = new Map(values.map((value, i) => [value, (i + 0.5) / values.length]));
  return { ticks: values.map((value) => [value, shorten(written(value), 12)]), share: (value) => place.get(value) };
}

function generations(points) {
  const found = new Map();
  for (const one of points) {
    if (!found.has(one.generation)) found.set(one.generation, []);
    found.get(one.generation).push(one);
  }
  return [...found].sort(([a], [b]) => a - b);
}

function counts(points) {
  const found = new Map();
  for (const one of points) found.set(one.value, (found.get(one.value) ?? 0) + 1);
  return [...found];
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}
