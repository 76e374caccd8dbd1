// Small elements used on every page. An outcome has a shape and a word, not only a colour.
import { h, svg } from "./dom.js";
import { percent, words } from "./format.js";

const SHAPES = {
  success: "M3.5 8.5l3 3 6-7",
  failure: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  unknown: "M8 8h.01",
};

export function outcomeName(success) {
  return success === true ? "success" : success === false ? "failure" : "unknown";
}

export function outcome(success, text) {
  const name = outcomeName(success);
  const icon = svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: SHAPES[name] }));
  return h("span", { class: `outcome ${name}` }, icon, text ?? name);
}

export function chip(text, kind) {
  return text === null || text === undefined || text === "" ? null : h("span", { class: `chip ${kind ?? ""}` }, words(text));
}

export function fact(name, ...value) {
  return h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, ...value));
}

export function facts(...rows) {
  return h("dl", { class: "facts" }, ...rows);
}

export function nothing(text, ...more) {
  return h("p", { class: "nothing" }, text, ...more);
}

// A rate as a dot, its interval as a line through it.
export function interval(measure, label) {
  const { mean, interval: range } = measure;
  if (mean === null || mean === undefined) return h("span", { class: "faint" }, "not known");
  const x = (value) => 4 + 192 * value;
  const low = range ? range.low : mean;
  const high = range ? range.high : mean;
  const text = range ? `${percent(mean)}, between ${percent(low)} and ${percent(high)}` : percent(mean);
  return svg(
    "svg",
    { viewBox: "0 0 200 20", class: "interval", role: "img", "aria-label": `${label ?? "success"}: ${text}`, preserveAspectRatio: "none" },
    svg("title", {}, text),
    svg("line", { x1: 4, x2: 196, y1: 10, y2: 10, class: "rail" }),
    [0, 0.5, 1].map((tick) => svg("line", { x1: x(tick), x2: x(tick), y1: 6, y2: 14, class: "rail" })),
    svg("line", { x1: x(low), x2: x(high), y1: 10, y2: 10, class: "range" }),
    svg("rect", { x: x(mean) - 2, y: 3, width: 4, height: 14, rx: 1.5, class: "dot" }),
  );
}
