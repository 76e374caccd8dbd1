// An evolution: its winner, the members of a generation, the family tree and the drift of settings; live while it runs.
import { ask, exported } from "./api.js";
import { address, h, link, svg } from "./dom.js";
import { drift } from "./drift.js";
import { empty } from "./empty.js";
import { familyTree } from "./family.js";
import { count, number, plural, signed, stageName, words } from "./format.js";
import { chip, fact, facts, nothing } from "./marks.js";
import { fitnessText, metricName, mutationText } from "./member.js";
import { written } from "./settings.js";
import { table } from "./table.js";

const EVERY_MS = 2000;

export async function evolutionPage(asked) {
  const { evolutions } = await ask("overview");
  if (!evolutions.length) return { title: "Evolution", node: h("div", {}, h("header", { class: "head" }, h("h1", {}, "Evolution")), empty("evolution")) };
  let [folder, generation, found, before, timer, numbers] = [null, null, null, "", null, []];
  const badge = h("span", { role: "status" });
  const tabs = h("nav", { class: "tabs", "aria-label": "evolutions", hidden: evolutions.length < 2 });
  const [winner, members, tree, settings, problems] = [0, 1, 2, 3, 4].map(() => h("div", {}));

  async function update(words_) {
    [folder, generation] = [words_.folder ?? evolutions.at(-1), /^\d{1,9}$/.test(words_.generation ?? "") ? Number(words_.generation) : null];
    tabs.replaceChildren(...evolutions.map((one) => {
      const to = link("evolution", { folder: one }, stageName(one));
      if (one === folder) to.setAttribute("aria-current", "page");
      return to;
    }));
    before = "";
    await read();
  }
  async function read() {
    clearTimeout(timer);
    found = await ask("evolution", { folder });
    const now = JSON.stringify(found);
    if (now !== before) draw();
    before = now;
    // A generation may take longer than a minute, so a run that looks interrupted is watched too.
    if (!exported && found.state !== "done") timer = setTimeout(() => read().catch(() => {}), EVERY_MS);
  }
  function draw() {
    numbers = [...new Set(found.members.map((one) => one.generation))].sort((a, b) => a - b);
    badge.replaceChildren(found.state === "running" ? h("span", { class: "live" }, "live") : found.state === "done" ? "" : chip("interrupted", "interrupted"));
    winner.replaceChildren(...winnerOf(found));
    drawMembers();
    const focused = tree.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    tree.replaceChildren(...(found.members.length ? familyTree(found) : []));
    if (focused) [...tree.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
    settings.replaceChildren(...drift(found));
    problems.replaceChildren(...damaged(found));
  }
  // Where the generation that is shown stands among those on file.
  function place() {
    const at = numbers.findLastIndex((one) => generation === null || one <= generation);
    return at < 0 ? 0 : at;
  }
  function drawMembers() {
    const focused = members.contains(document.activeElement) ? document.activeElement.id : null;
    members.replaceChildren(...(numbers.length ? generationOf(found, numbers, place(), show) : [nothing("No generation has been measured yet. Its members appear here when it is.")]));
    if (focused) document.getElementById(focused)?.focus();
  }
  function show(at) {
    if (at < 0 || at >= numbers.length) return;
    generation = at === numbers.length - 1 ? null : numbers[at]; // the newest, also when there is a newer one
    history.replaceState(null, "", address("evolution", { folder, generation }));
    drawMembers();
  }
  await update(asked);
  return {
    title: "Evolution",
    node: h("div", {}, h("header", { class: "head row" }, h("h1", {}, "Evolution"), badge), tabs, winner, members, tree, settings, problems),
    update,
    keys: { n: () => show(place() + 1), p: () => show(place() - 1) },
    close: () => clearTimeout(timer),
  };
}

function winnerOf(found) {
  const own = found.winner;
  const curves = link("training", { folder: found.folder }, "curves of the fittest member");
  const about = h("p", { class: "lead" }, `${plural(found.generations, "generation")}, fitness is ${metricName(found)}`, curves);
  if (!own) return [about];
  const on = ({ tasks }) => (tasks === null ? "" : ` on ${plural(tasks, ["success", "reward"].includes(found.metric) ? "task" : "record")}`);
  const better = own.shrinkage !== null && own.shrinkage <= 0;
  return [about, h("section", { class: "winner" },
    h("h2", {}, h("span", { "aria-hidden": "true" }, "★ "), `Winner ${own.name}`),
    facts(
      fact(`${metricName(found)} when selected`, h("span", {}, fitnessText(own.selected, found)), on(own.selected)),
      fact(`${metricName(found)} on untouched data`, h("b", {}, fitnessText(own.untouched, found)), on(own.untouched)),
      fact("shrinkage", own.shrinkage === null ? "–" : found.rate ? `${signed(100 * own.shrinkage, 1)} points` : number(own.shrinkage)),
      own.updates === null ? null : fact("updates", count(own.updates), own.empty_updates ? ` and ${count(own.empty_updates)} that taught nothing` : ""),
      own.tokens_computed === null ? null : fact("tokens computed", count(own.tokens_computed)),
    ),
    h("p", { class: "faint small" }, better ? "The winner was not flattered by its selection." : "The best of several members is partly the luckiest: trust the number on untouched data."),
  )];
}

function generationOf(found, numbers, at, show) {
  const shown = numbers[at];
  const lines = found.members.filter((one) => one.generation === shown).sort((a, b) => a.place - b.place);
  const names = [...new Set(lines.flatMap((one) => Object.keys(one.settings)))];
  const selected = lines.some((one) => one.lives !== null);
  const ranks = new Set(found.members.map((one) => one.rank)).size > 1;
  const columns = [{ label: "member", first: true }, { label: "fitness" }, { label: "loss", num: 1 }, { label: "age", num: 1 },
    { label: "parent" }, { label: "mutation" }, ...names.map((label) => ({ label: words(label), num: 1 })), ...(ranks ? [{ label: "rank", num: 1 }] : []),
    { label: "updates", num: 1 }, ...(selected ? [{ label: "next generation" }] : [])];
  const scale = scaleOf(lines, found);
  const rows = lines.map((one) => ({ class: mark(one, found) ? "current" : null, cells: [
    h("span", {}, mark(one, found), one.name), [fitnessText(one, found), bar(one, scale, found)], number(one.loss), count(one.generation - one.born), one.parent ?? "–", mutationText(one) || "–",
    ...names.map((name) => written(one.settings[name])), ...(ranks ? [count(one.rank)] : []), count(one.step), ...(selected ? [fate(one)] : []),
  ] }));
  const chosen = h("select", { id: "generation", "aria-label": "generation", on: { change: () => show(Number(chosen.value)) } },
    numbers.map((one, i) => h("option", { value: i, selected: i === at }, `generation ${one}`)));
  const button = (id, text, to, label) => h("button", { type: "button", id, "aria-label": label, disabled: to < 0 || to >= numbers.length, on: { click: () => show(to) } }, text);
  return [h("div", { class: "head row" }, h("h2", {}, "Members"),
    h("span", { class: "generation" }, button("earlier", "←", at - 1, "previous generation (p)"), chosen, button("later", "→", at + 1, "next generation (n)"))),
  h("div", { class: "scroll" }, table(`the members of generation ${shown}`, columns, rows))];
}

function mark(one, found) {
  const last = one.generation === found.generations - 1;
  if (found.winner && last && one.name === found.winner.name) return "★ ";
  return one.place === 1 && one.lives ? "■ " : null;
}

function fate(one) {
  if (one.lives === null) return "–";
  const children = one.children ? plural(one.children, "child").replace("childs", "children") : "";
  return [one.place === 1 && one.lives ? "elite, lives on" : one.lives ? "lives on" : "replaced", children].filter(Boolean).join(", ");
}

// Rates lie between 0 and 1; for other metrics the scale is that of the generation.
function scaleOf(lines, found) {
  if (found.rate) return [0, 1];
  const values = lines.flatMap((one) => [one.fitness, ...(one.interval ?? [])]).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return values.length && high > low ? [low, high] : [low - 1, low + 1];
}

function bar(one, [from, to], found) {
  if (one.fitness === null) return null;
  const x = (value) => 4 + 192 * Math.min(1, Math.max(0, (value - from) / (to - from) || 0));
  const [low, high] = one.interval ?? [one.fitness, one.fitness];
  return svg("svg", { viewBox: "0 0 200 20", class: "interval", role: "img", "aria-label": `${metricName(found)}: ${fitnessText(one, found)}`, preserveAspectRatio: "none" },
    svg("line", { x1: 4, x2: 196, y1: 10, y2: 10, class: "rail" }),
    svg("line", { x1: x(low), x2: x(high), y1: 10, y2: 10, class: "range" }),
    svg("rect", { x: x(one.fitness) - 2, y: 3, width: 4, height: 14, rx: 1.5, class: "dot" }));
}

function damaged(found) {
  if (!found.damaged.length && !found.left_out) return [];
  return [h("section", { class: "problems" }, h("h2", {}, "Lines that could not be read"), h("ul", {},
    found.damaged.map((one) => h("li", {}, h("span", { class: "mono" }, `lineage.jsonl:${one.line}`), `: ${one.why}`)),
    found.left_out ? h("li", {}, `${plural(found.left_out, "more line")} left out`) : null))];
}
