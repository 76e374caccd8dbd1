// The attempts at one task as a tree: they share a branch until they differ.
import { ask } from "./api.js";
import { address, h, link, svg } from "./dom.js";
import { agentName, count, ending, number, plural, shorten, signed, words } from "./format.js";
import { chip, fact, facts, outcome, outcomeName } from "./marks.js";
import { table } from "./table.js";

const ROW = 34;
const WIDTH = 900;
const LEFT = 22;
const RIGHT = 190;

export async function treePage(asked) {
  const found = await ask("tree", { at: asked.at });
  const file = found.at.slice(0, found.at.lastIndexOf(":"));
  const nodes = found.root.map((node, i) => ({ ...node, number: i, children: [] }));
  for (const node of nodes) if (node.parent !== null) nodes[node.parent].children.push(node);
  const solved = found.attempts.filter((one) => one.success === true).length;
  const panel = h("section", { class: "panel", "aria-live": "polite" });
  const drawing = draw(nodes, found, (node) => show(panel, node, found));
  show(panel, nodes.find((node) => node.children.length > 1) ?? nodes[0], found);
  const { previous = null, next = null } = found.beside;
  const to = (line) => address("tree", { at: `${file}:${line}` });
  const step = (line, text) => (line === null ? null : h("a", { href: to(line) }, text));
  const node = h("article", {},
    h("header", { class: "head" },
      h("p", { class: "crumbs" }, link("groups", { file }, file)),
      h("h1", {}, found.goal || found.task),
      h("p", { class: "lead" }, `${solved} of ${plural(found.attempts.length, "attempt")} succeed`, found.flat ? chip(words(found.flat)) : null),
      h("p", { class: "links" }, step(previous, "← previous"), step(next, "next →")),
      facts(fact("turns played", count(found.turns)), fact("turns in the tree", count(found.distinct)),
        fact("shared", found.distinct ? `${number(found.turns / found.distinct)}×` : "–"), fact("task", found.task)),
    ),
    h("div", { class: "scroll tree" }, drawing),
    panel,
    attempts(found),
  );
  const jump = (line) => { if (line !== null) location.hash = to(line); };
  return { title: found.goal || "Tree", node, keys: { n: () => jump(next), p: () => jump(previous) } };
}

function draw(nodes, found, choose) {
  // What matters is where attempts diverge: long stretches are drawn shorter than they are.
  const span = (n) => (n ? 1 + 0.7 * Math.log2(n) : 0);
  for (const node of nodes) {
    node.from = node.parent === null ? 0 : nodes[node.parent].to + (node.steps.length ? 0.6 : 0);
    node.to = node.from + span(node.steps.length);
  }
  const deepest = Math.max(1, ...nodes.map((node) => node.to));
  const x = (place_) => LEFT + (place_ / deepest) * (WIDTH - LEFT - RIGHT - 40);
  let row = 0;
  // Leaves get rows in order; a parent is centred on its children. Children follow their parents in the list.
  const ends = nodes.map((node) => node.attempts.filter((a) => !node.children.some((child) => child.attempts.includes(a))));
  const place = (node) => {
    const rows = [];
    for (const child of node.children) rows.push(child.y);
    for (const attempt of ends[node.number]) rows.push(leafRow.get(attempt));
    return rows.reduce((sum, one) => sum + one, 0) / Math.max(1, rows.length);
  };
  const leafRow = new Map();
  const stack = [nodes[0]];
  while (stack.length) {
    const node = stack.pop();
    for (const attempt of ends[node.number]) leafRow.set(attempt, ++row);
    stack.push(...[...node.children].reverse());
  }
  for (const node of [...nodes].reverse()) node.y = place(node);
  const height = ROW * (row + 1);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "tree", role: "group", "aria-label": `a tree of ${found.attempts.length} attempts` });
  for (const node of nodes) {
    const begin = x(node.from);
    const end = x(node.to);
    const y = ROW * node.y;
    for (const child of node.children) drawn.append(edge(end, y, x(child.from), ROW * child.y, child, found));
    for (const attempt of ends[node.number]) drawn.append(...leaf(attempt, end, y, ROW * leafRow.get(attempt), found));
    if (node.steps.length) {
      drawn.append(svg("line", { x1: begin, x2: end, y1: y, y2: y, class: `edge ${mood(node, found)}`, "stroke-width": thick(node, found) }));
      const room = Math.floor((end - begin - 14) / 6.3);
      const more = node.steps.length > 1 ? ` … +${node.steps.length - 1}` : "";
      if (room > 8) drawn.append(svg("text", { x: begin + 2, y: y - 7, class: "tree-said" }, shorten(node.steps[0].action, room - more.length) + more));
    }
  }
  for (const node of nodes) drawn.append(knot(node, x(node.to), ROW * node.y, found, choose, drawn));
  return drawn;
}

function mood(node, found) {
  const outcomes = node.attempts.map((a) => found.attempts[a].success);
  if (outcomes.every((one) => one === true)) return "success";
  return outcomes.some((one) => one === true) ? "mixed" : outcomes.some((one) => one === false) ? "failure" : "unknown";
}

function thick(node, found) {
  return 1.5 + 6 * (node.attempts.length / found.attempts.length);
}

function edge(x1, y1, x2, y2, node, found) {
  const middle = (x1 + x2) / 2;
  return svg("path", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, class: `edge ${mood(node, found)}`, "stroke-width": thick(node, found) });
}

function leaf(attempt, x1, y1, y2, found) {
  const one = found.attempts[attempt];
  const end = WIDTH - RIGHT + 8;
  const name = outcomeName(one.success);
  const middle = x1 + Math.min(40, (end - x1) / 2);
  const shape = name === "success" ? svg("circle", { cx: end, cy: y2, r: 5.5, class: `leaf ${name}` }) : svg("path", { d: `M${end - 5} ${y2 - 5}l10 10m0 -10l-10 10`, class: `leaf ${name}` });
  return [
    svg("path", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${middle + 10} ${y2}H${end - 8}`, class: `edge tail ${name}`, "stroke-width": 1 }),
    shape,
    svg("a", { href: address("trajectory", { at: one.at, attempt: one.attempt }), class: "leaf-name" },
      svg("text", { x: end + 12, y: y2 + 4 }, `${attempt + 1} · ${name} · ${plural(one.turns, "turn")}`)),
  ];
}

function knot(node, x, y, found, choose, drawn) {
  const kind = mood(node, found);
  const label = node.parent === null && !node.steps.length ? "the start" : `${plural(node.steps.length, "turn")} shared by ${plural(node.attempts.length, "attempt")}, ${kind}`;
  const act = () => {
    for (const other of drawn.querySelectorAll(".knot")) other.classList.toggle("chosen", other === mark);
    choose(node);
  };
  const mark = svg("g", { class: `knot ${kind}`, tabindex: "0", role: "button", "aria-label": label, on: { click: act, keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } } } },
    svg("circle", { cx: x, cy: y, r: 12, class: "target" }),
    svg("circle", { cx: x, cy: y, r: 5 }),
    svg("title", {}, label));
  return mark;
}

function show(panel, node, found) {
  const together = node.attempts.length;
  panel.replaceChildren(
    h("h2", {}, node.steps.length ? `Turns ${node.depth + 1} to ${node.depth + node.steps.length}` : "The start",
      h("span", { class: "faint" }, ` ${together === 1 ? `attempt ${node.attempts[0] + 1} only` : `shared by ${together} attempts`}`)),
    node.steps.length ? h("ol", { class: "steps", start: node.depth + 1 }, node.steps.slice(0, 60).map((step, i) => h("li", { value: node.depth + i + 1 },
      h("span", { class: "mono" }, shorten(step.action, 220)), step.error ? chip(step.error, "bad") : null,
      h("div", { class: "faint small" }, shorten(step.observation, 220))))) : "",
    node.children.length ? h("div", {}, h("h3", {}, "Next turns"), h("ul", { class: "ways" }, node.children.map((child) => h("li", {},
      h("span", { class: "mono" }, shorten(child.steps[0].action, 120)),
      h("span", { class: "faint" }, ` ${plural(child.attempts.length, "attempt")}, ${child.attempts.filter((a) => found.attempts[a].success === true).length} succeed`))))) : "",
  );
}

function attempts(found) {
  const columns = [{ label: "attempt", first: true }, { label: "outcome" }, { label: "ending" }, { label: "reward", num: 1 }, { label: "advantage", num: 1 }, { label: "turns", num: 1 }, { label: "agent" }];
  return h("div", { class: "scroll" }, table("the attempts", columns, found.attempts.map((one, i) => ({ cells: [
    link("trajectory", { at: one.at, attempt: one.attempt }, `${i + 1}`), outcome(one.success), ending(one.stop, one.success), number(one.reward),
    one.advantage === null ? "–" : signed(one.advantage), count(one.turns), agentName(one.agent) || "–",
  ] }))));
}
