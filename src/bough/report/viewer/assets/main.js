// Shows the page that the address names, and handles the keyboard.
import { ask, exported } from "./api.js";
import { h, link } from "./dom.js";
import { evaluationPage } from "./evaluation.js";
import { evolutionPage } from "./evolution.js";
import { listPage } from "./list.js";
import { pairPage } from "./pair.js";
import { runsPage } from "./runs.js";
import { trainingPage } from "./training.js";
import { trajectoryPage } from "./trajectory.js";
import { treePage } from "./tree.js";

const TABS = [["runs", "Runs"], ["training", "Training"], ["trajectories", "Trajectories"], ["pairs", "Pairs"], ["groups", "Trees"], ["evaluation", "Evaluation"]];
const UNDER = { evolution: "training", trajectory: "trajectories", pair: "pairs", tree: "groups" };
const PAGES = {
  runs: runsPage, training: trainingPage, evaluation: evaluationPage, evolution: evolutionPage, trajectory: trajectoryPage, pair: pairPage, tree: treePage,
  trajectories: (asked) => listPage("trajectories", asked), pairs: (asked) => listPage("pairs", asked), groups: (asked) => listPage("groups", asked),
};
const KEYS = [["1 … 6", "the pages, left to right"], ["j, k", "next, previous row or turn"], ["Enter", "open the row"], ["n, p", "next, previous record or generation"],
  ["t", "exact tokens of the turn"], ["/", "search"], ["d", "light or dark"], ["?", "this list"]];

const title = h("span", { class: "where" });
const nav = h("nav", { class: "pages", "aria-label": "pages" }, TABS.map(([page, name]) => link(page, {}, name)));
const main = h("main", { id: "main", tabindex: "-1" });
const help = h("dialog", { "aria-label": "keyboard" }, h("h2", {}, "Keyboard"),
  h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
  h("form", { method: "dialog" }, h("button", {}, "close")));
const theme = h("button", { type: "button", class: "plain", "aria-label": "light or dark", title: "light or dark (d)", on: { click: () => switchTheme() } }, "◐");
const ask_help = h("button", { type: "button", class: "plain", "aria-label": "keyboard shortcuts", title: "keyboard (?)", on: { click: () => help.showModal() } }, "?");

document.body.replaceChildren(
  h("a", { class: "skip", href: "#main", on: { click: (event) => { event.preventDefault(); main.focus(); } } }, "to the content"),
  h("header", { class: "bar-top" }, h("div", { class: "brand" }, h("b", {}, "Bough"), title), nav, h("div", { class: "tools" }, theme, ask_help)),
  main, help,
);

let page = null;
let shown = "";
let turn = 0;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const asked = Object.fromEntries(new URLSearchParams(query ?? ""));
  return { name: Object.hasOwn(PAGES, path) ? path : "runs", asked };
}

async function open() {
  const { name, asked } = route();
  for (const one of nav.children) {
    if (one.getAttribute("href") === `#/${UNDER[name] ?? name}`) {
      one.setAttribute("aria-current", "page");
      one.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else one.removeAttribute("aria-current");
  }
  if (page?.update && shown === name) return page.update(asked);
  const mine = ++turn;
  main.setAttribute("aria-busy", "true");
  let next;
  try {
    next = await PAGES[name](asked);
  } catch (error) {
    next = { title: "Bough", node: h("div", { class: "failed", role: "alert" }, h("h1", {}, "This cannot be shown"), h("p", {}, error.message)) };
  }
  if (mine !== turn) { next.close?.(); return undefined; }
  page?.close?.();
  [page, shown] = [next, name];
  main.removeAttribute("aria-busy");
  main.replaceChildren(next.node);
  document.title = `${next.title} · Bough`;
  scrollTo(0, 0);
  return undefined;
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("bough-theme", name); } catch { /* a page in a file may have no storage */ }
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const own = page?.keys?.[event.key];
  if (own) own();
  else if (event.key === "?") help.showModal();
  else if (event.key === "d") switchTheme();
  else if (/^[1-6]$/.test(event.key)) location.hash = `#/${TABS[event.key - 1][0]}`;
  else return;
  event.preventDefault();
});
addEventListener("hashchange", () => open());

try {
  const kept = localStorage.getItem("bough-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch { /* as above */ }
open().then(() => ask("overview")).then((found) => { title.textContent = found.name + (exported ? " (exported)" : ""); }, () => {});
