// Lists of records: filters on top, one page of rows below. The address holds the filters and the sorting.
import { ask } from "./api.js";
import { address, h } from "./dom.js";
import { empty } from "./empty.js";
import { agentName, count, ending, number, shorten, stageName, words } from "./format.js";
import { chip, nothing, outcome } from "./marks.js";
import { table } from "./table.js";

const PAGE = 100;
const KINDS = {
  trajectories: {
    kind: "trajectory", title: "Trajectories", open: "trajectory",
    filters: ["outcome", "type", "stop", "stage", "agent", "file"], bounds: true,
    columns: [["outcome", ""], ["task", "task"], ["ending", ""], ["reward", "reward", 1], ["turns", "turns", 1], ["tokens", "tokens", 1], ["errors", "errors", 1], ["stage", ""], ["agent", ""]],
  },
  pairs: {
    kind: "pair", title: "Pairs", open: "pair", filters: ["reason", "type", "stage", "file"],
    columns: [["reason", ""], ["task", "task"], ["margin", "reward", 1], ["turns", "turns", 1], ["stage", ""]],
  },
  groups: {
    kind: "group", title: "Trees", open: "tree", filters: ["outcome", "type", "stage", "agent", "file"],
    columns: [["outcome", ""], ["task", "task"], ["mean reward", "reward", 1], ["turns", "turns", 1], ["stage", ""], ["agents", ""]],
  },
};
const LABELS = { outcome: "outcome", type: "type of task", stop: "ending", stage: "stage", agent: "agent", file: "file", reason: "reason" };
const SPELLED = { file: (value) => value, stage: stageName, agent: agentName, stop: (value) => ending(value) };

export async function listPage(name, asked) {
  const kind = KINDS[name];
  let wanted = { ...asked };
  let rows = [];
  let selected = -1;
  let timer = null;
  const status = h("p", { class: "faint", role: "status" });
  const place = h("div", { class: "scroll" });
  const filters = h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } });
  const search = h("input", {
    type: "search", name: "q", id: "search", placeholder: "search in the messages   /", value: wanted.q ?? "", autocomplete: "off",
    "aria-label": "search in the messages", on: { input: () => later(() => change({ q: search.value })) },
  });
  let waiting = null;
  function later(work) {
    clearTimeout(waiting);
    waiting = setTimeout(work, 180);
  }
  function change(words_) {
    const next = { ...wanted, ...words_ };
    if (!("offset" in words_)) delete next.offset;
    history.replaceState(null, "", address(name, next));
    update(next);
  }
  async function update(next) {
    wanted = { ...next };
    const sent = JSON.stringify(wanted);
    const found = await ask("records", { ...wanted, kind: kind.kind, limit: PAGE });
    if (sent !== JSON.stringify(wanted)) return; // a later question is under way
    rows = found.rows;
    selected = -1;
    drawFilters(found.facets);
    draw(found);
    clearTimeout(timer);
    if (found.busy) timer = setTimeout(() => update(wanted).catch(() => {}), 1000);
  }
  function drawFilters(facets) {
    const selects = kind.filters.filter((one) => one === "outcome" || wanted[one] || (facets[one] ?? []).length > 1).map((one) => select(one, facets));
    const bounds = kind.bounds ? [range("reward"), range("turns")] : [];
    const clear = Object.keys(wanted).some((one) => !["sort", "order", "offset"].includes(one));
    const parts = [search, ...selects, ...bounds, clear ? h("button", { type: "button", class: "plain", on: { click: () => { search.value = ""; history.replaceState(null, "", address(name, {})); update({}); } } }, "clear") : null].filter(Boolean);
    // What the user is typing in stays where it is.
    const active = document.activeElement;
    const focus = active && filters.contains(active) ? active.id : null;
    filters.replaceChildren(...parts);
    if (focus) document.getElementById(focus)?.focus();
  }
  function select(one, facets) {
    const values = one === "outcome" ? ["success", "failure", "unknown"].map((value) => ({ value })) : facets[one] ?? [];
    const id = `filter-${one}`;
    const element = h("select", { id, on: { change: () => change({ [one]: element.value }) } },
      h("option", { value: "" }, `any ${LABELS[one]}`),
      values.map((part) => h("option", { value: part.value, selected: String(part.value) === wanted[one] }, shorten((SPELLED[one] ?? words)(part.value), 60), part.count ? ` (${count(part.count)})` : "")),
    );
    element.setAttribute("aria-label", LABELS[one]);
    return element;
  }
  function range(one) {
    const field = (side) => h("input", {
      type: "number", id: `${side}-${one}`, step: one === "reward" ? "any" : "1", value: wanted[`${side}_${one}`] ?? "", placeholder: side,
      "aria-label": `${one}, ${side === "min" ? "at least" : "at most"}`, on: { input: (event) => later(() => change({ [`${side}_${one}`]: event.target.value })) },
    });
    return h("span", { class: "range" }, h("span", { class: "faint" }, one), field("min"), "–", field("max"));
  }
  function draw(found) {
    const last = Math.min(found.offset + PAGE, found.total);
    status.replaceChildren(
      found.total ? `${count(found.offset + 1)}–${count(last)} of ${count(found.total)}` : "",
      found.busy ? h("span", { class: "busy" }, "still reading the files …") : "",
    );
    const none = !found.busy && !(found.facets.file ?? []).length;
    filters.hidden = none;
    if (!found.total) {
      place.replaceChildren(found.busy ? nothing("Reading the files …") : none ? empty(name) : nothing(`No ${kind.title.toLowerCase()} match these filters.`));
      return;
    }
    const columns = kind.columns.map(([label, sort, num]) => ({ label, num, ...heading(label, sort) }));
    place.replaceChildren(
      table(kind.title, columns, rows.map((row, i) => line(row, i))),
      found.total > PAGE ? h("nav", { class: "pager", "aria-label": "pages of the list" },
        h("button", { type: "button", disabled: found.offset === 0, on: { click: () => change({ offset: Math.max(0, found.offset - PAGE) }) } }, "← previous page"),
        h("button", { type: "button", disabled: last >= found.total, on: { click: () => change({ offset: found.offset + PAGE }) } }, "next page →"),
      ) : "",
    );
  }
  function heading(label, sort) {
    if (!sort) return {};
    const on = wanted.sort === sort;
    const next = on && wanted.order !== "down" ? { sort, order: "down" } : { sort, order: "" };
    return {
      sort: on ? (wanted.order === "down" ? "descending" : "ascending") : null,
      head: h("button", { type: "button", class: "plain", title: `sort by ${label}`, on: { click: () => change(next) } }, label, on ? (wanted.order === "down" ? " ↓" : " ↑") : ""),
    };
  }
  function line(row, i) {
    const cells = {
      outcome: () => (kind.kind === "group" ? outcome(row.success, row.stop) : outcome(row.success)),
      reason: () => chip(row.reason ?? "no reason given"),
      task: () => [
        h("a", { class: "row-link", href: address(kind.open, { at: row.at }) }, row.preview || row.name),
        h("div", { class: "faint small" }, shorten(row.name, 80)),
      ],
      ending: () => ending(row.stop, row.success),
      reward: () => number(row.reward), margin: () => number(row.reward), "mean reward": () => number(row.reward),
      turns: () => count(row.turns), tokens: () => (row.tokens ? count(row.tokens) : "–"), errors: () => (row.errors ? count(row.errors) : "–"),
      stage: () => shorten(stageName(row.stage), 40), agent: () => shorten(agentName(row.agent), 40) || "–", agents: () => shorten(agentName(row.agent), 60) || "–",
    };
    const open = (event) => { if (!event.target.closest("a")) location.hash = address(kind.open, { at: row.at }); };
    return { "data-row": i, on: { click: open }, cells: kind.columns.map(([label]) => cells[label]()) };
  }
  function move(step) {
    if (!rows.length) return;
    selected = Math.max(0, Math.min(rows.length - 1, selected + step));
    const lines = place.querySelectorAll("tbody tr");
    lines.forEach((one, i) => one.classList.toggle("selected", i === selected));
    lines[selected].querySelector(".row-link").focus();
    lines[selected].scrollIntoView({ block: "nearest" });
  }
  await update(wanted);
  const head = h("header", { class: "head row" }, h("h1", {}, kind.title), status);
  return {
    title: kind.title,
    node: h("div", {}, head, filters, place),
    update,
    close: () => clearTimeout(timer),
    keys: { j: () => move(1), k: () => move(-1), "/": () => search.focus() },
  };
}
