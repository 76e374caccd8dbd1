// The family tree of an evolution: a column per generation, fittest on top, a line from parent to child.
import { h, svg } from "./dom.js";
import { count, number, plural, shorten, words } from "./format.js";
import { fact, facts } from "./marks.js";
import { fitnessText, metricName, mutationText } from "./member.js";
import { written } from "./settings.js";

const [COLUMN, ROW, LEFT, TOP, RIGHT] = [130, 32, 26, 52, 112];
const MOST = 800; // members; with more, only ancestors of the newest generation are drawn

export function familyTree(found) {
  const nodes = laidOut(found);
  const panel = h("section", { class: "panel", "aria-live": "polite" });
  const choose = (node) => show(panel, node, found);
  const drawing = draw(nodes, found, choose);
  const leader = nodes.at.get(key(found.generations - 1, found.leader)) ?? nodes.all[0];
  choose(leader);
  return [
    h("h2", {}, "Family tree"),
    legend(found),
    nodes.hidden ? h("p", { class: "faint small" }, `${plural(nodes.hidden, "member")} without descendants in the newest generation ${nodes.hidden === 1 ? "is" : "are"} not drawn.`) : null,
    h("div", { class: "scroll tree" }, drawing), panel,
  ].filter(Boolean);
}

function key(generation, name) {
  return `${generation}/${name}`;
}

// The members by generation with their places on the page, and the edges: from itself, or from its parent.
function laidOut(found) {
  const at = new Map(found.members.map((one) => [key(one.generation, one.name), { ...one, key: key(one.generation, one.name), from: [], to: [] }]));
  for (const node of at.values()) {
    const itself = at.get(key(node.generation - 1, node.name));
    const one = itself ?? at.get(key(node.generation - 1, node.parent));
    if (one) { node.from.push({ node: one, kind: itself ? "lives" : "child" }); one.to.push(node); }
  }
  const newest = [...at.values()].filter((node) => node.generation === found.generations - 1);
  let all = [...at.values()];
  if (all.length > MOST) all = [...reached(newest)];
  const columns = new Map();
  for (const node of all) columns.set(node.generation, [...(columns.get(node.generation) ?? []), node]);
  const numbers = [...columns.keys()].sort((a, b) => a - b);
  numbers.forEach((generation, at_) => columns.get(generation).sort((a, b) => a.place - b.place).forEach((node, row) => {
    [node.x, node.y] = [LEFT + COLUMN * at_, TOP + ROW * row];
  }));
  const line = new Set();
  for (const { generation, name } of found.pedigree) for (let g = generation; at.has(key(g, name)); g--) line.add(key(g, name));
  return { at, all, columns, line, hidden: at.size - all.length };
}

function reached(begin) {
  const known = new Set(begin);
  for (const node of known) for (const { node: before } of node.from) known.add(before); // a set that grows is walked to its end
  return known;
}

function draw(nodes, found, choose) {
  const width = LEFT + COLUMN * (nodes.columns.size - 1) + RIGHT;
  const height = TOP - 10 + ROW * Math.max(...[...nodes.columns.values()].map((column) => column.length));
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "family", role: "group", "aria-label": `a family tree of ${plural(nodes.columns.size, "generation")}; arrow keys move between members` });
  const edges = nodes.all.flatMap((node) => node.from.filter((one) => one.node.x !== undefined).map((one) => ({ ...one, child: node })));
  const own = ({ node, child }) => nodes.line.has(node.key) && nodes.line.has(child.key);
  // The line of the winner is drawn last, over the others.
  for (const edge of edges.sort((a, b) => own(a) - own(b))) {
    const { node: from, child: to, kind } = edge;
    const middle = (from.x + to.x) / 2;
    drawn.append(svg("path", { d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`, class: `kin ${kind} ${own(edge) ? "own" : ""}` }));
  }
  for (const [generation, [first]] of nodes.columns) drawn.append(svg("text", { x: first.x - 8, y: 18, class: "tick" }, `generation ${generation}`));
  const marks = new Map();
  for (const node of nodes.all) {
    const mark = knot(node, nodes, found, () => select(node));
    marks.set(node, mark);
    drawn.append(mark);
  }
  function select(node, focus) {
    for (const [other, mark] of marks) {
      mark.classList.toggle("chosen", other === node);
      mark.setAttribute("tabindex", other === node ? "0" : "-1");
    }
    choose(node);
    if (focus) marks.get(node).focus();
  }
  drawn.addEventListener("keydown", (event) => {
    const node = nodes.all.find((one) => marks.get(one) === event.target);
    const next = node && neighbour(node, event.key, nodes, marks);
    if (!next) return;
    event.preventDefault();
    select(next, true);
  });
  const leader = nodes.at.get(key(found.generations - 1, found.leader));
  marks.get(marks.has(leader) ? leader : nodes.all[0]).setAttribute("tabindex", "0");
  return drawn;
}

function neighbour(node, pressed, nodes, marks) {
  const column = nodes.columns.get(node.generation);
  const row = column.indexOf(node);
  if (pressed === "Enter" || pressed === " ") return node;
  if (pressed === "ArrowUp") return column[row - 1];
  if (pressed === "ArrowDown") return column[row + 1];
  if (pressed === "ArrowLeft") return node.from.map((one) => one.node).find((one) => marks.has(one));
  return pressed === "ArrowRight" ? node.to.filter((one) => marks.has(one)).sort((a, b) => a.place - b.place)[0] : undefined;
}

function knot(node, nodes, found, act) {
  const role = rank(node, found);
  const label = [node.name, `generation ${node.generation}`, role, `${metricName(found)} ${fitnessText(node, found)}`].filter(Boolean).join(", ");
  const { x, y } = node;
  const star = Array.from({ length: 10 }, (_, i) => { const [r, a] = [i % 2 ? 4 : 9, (Math.PI * i) / 5]; return `${(x + r * Math.sin(a)).toFixed(1)} ${(y - r * Math.cos(a)).toFixed(1)}`; }).join("L");
  const shape = role === "winner" ? svg("path", { d: `M${star}Z`, class: "shape" }) : role === "elite" ? svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12, class: "shape" }) : svg("circle", { cx: x, cy: y, r: 5.5, class: "shape" });
  const value = node.fitness === null ? "?" : found.rate ? `${(100 * node.fitness).toFixed(0)}%` : number(node.fitness);
  return svg("g", { class: `member ${role} ${node.lives ? "lives" : ""} ${nodes.line.has(node.key) ? "own" : ""}`, tabindex: "-1", role: "button", "aria-label": label, "data-key": node.key, on: { click: act } },
    svg("circle", { cx: x, cy: y, r: 13, class: "target" }), shape,
    svg("text", { x: x + 9, y: y - 7 }, `${shorten(node.name, 9)} ${value}`), svg("title", {}, label));
}

function rank(node, found) {
  if (found.winner && node.generation === found.generations - 1 && node.name === found.winner.name) return "winner";
  return node.place === 1 && node.lives ? "elite" : "";
}

function legend(found) {
  const sample = (...shapes) => svg("svg", { viewBox: "0 0 34 16", width: 34, height: 16, class: "family sample", "aria-hidden": "true" }, ...shapes);
  const line = (kind) => svg("path", { d: "M2 8H32", class: `kin ${kind}` });
  const one = (kind, shape) => svg("g", { class: `member ${kind}` }, shape);
  const circle = () => svg("circle", { cx: 17, cy: 8, r: 5.5, class: "shape" });
  return h("p", { class: "legend" }, [
    [sample(one("lives", circle())), "lives on"], [sample(one("", circle())), "replaced, or in the last generation"], [sample(one("elite lives", svg("rect", { x: 11, y: 2, width: 12, height: 12, class: "shape" }))), "elite"],
    [sample(line("lives")), "the same member"], [sample(line("child")), "parent and child"],
    [sample(line("own child")), found.winner ? "★ winner and its ancestors" : "the fittest and its ancestors"],
  ].map(([drawing, text]) => h("span", {}, drawing, ` ${text}`)));
}

function show(panel, node, found) {
  const children = [...new Set(node.to.filter((one) => one.name !== node.name).map((one) => one.name))];
  panel.replaceChildren(
    h("h2", {}, node.name, h("span", { class: "faint" }, ` in generation ${node.generation}${rank(node, found) ? `, ${rank(node, found)}` : ""}`)),
    facts(
      fact(metricName(found), fitnessText(node, found)), fact("place", count(node.place)), fact("loss", number(node.loss)),
      fact("age", plural(node.generation - node.born, "generation")), fact("parent", node.parent ?? "–"),
      fact("mutation", mutationText(node) || "–"), fact("children", children.length ? shorten(children.join(", "), 200) : "–"),
      Object.entries(node.settings).map(([name, value]) => fact(words(name), written(value))), fact("rank", count(node.rank)), fact("updates", count(node.step)),
    ),
  );
}
