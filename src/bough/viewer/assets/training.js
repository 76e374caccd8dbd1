// A training run's curves, live while it goes on.
import { ask, exported } from "./api.js";
import { chart } from "./chart.js";
import { h, link } from "./dom.js";
import { count, number, words } from "./format.js";
import { chip, fact, facts, nothing } from "./marks.js";

// In this order where they are there; everything else stands behind, folded.
const FIRST = ["loss", "preference_loss", "nll", "reward", "success", "accuracy", "margin", "chosen_reward", "rejected_reward", "kl", "entropy", "token_entropy",
  "completion_length", "turns", "token_accuracy", "shared", "eval_loss", "held_out_success", "logprob_gap", "clip_fraction", "learning_rate", "grad_norm", "tokens_per_s"];
const NOT_CURVES = new Set(["step", "epoch", "seconds"]);
const SHOWN = 12;

export async function trainingPage(asked) {
  const { training } = await ask("overview");
  if (!training.length) return { title: "Training", node: h("div", {}, h("h1", {}, "Training"), nothing("No training run is in this folder: a run leaves a metrics.jsonl.")) };
  const folder = asked.folder ?? training[0];
  const lines = [];
  let next = 0;
  let timer = null;
  let settings = null;
  const badge = h("span", { role: "status" });
  const charts = h("div", { class: "charts" });
  const more = h("div", { class: "charts" });
  const moreBox = h("details", { class: "more" }, h("summary", {}, "more curves"), more);
  const about = h("div", {});

  async function read() {
    const found = await ask("training", { folder, after: next || null });
    if (found.from < next) lines.length = 0;
    lines.push(...found.lines);
    const changed = found.lines.length > 0 || next === 0;
    next = found.next;
    if (found.settings) settings = found.settings;
    badge.replaceChildren(found.state === "running" ? h("span", { class: "live" }, "live") : found.state === "done" ? "" : chip(found.state, "cut-short"));
    if (changed) draw(found);
    if (exported) return;
    if (found.more) await read();
    else if (found.state === "running") timer = setTimeout(() => read().catch(() => {}), 2000);
  }
  function draw() {
    const names = new Map();
    for (const line of lines) for (const name of Object.keys(line)) if (!NOT_CURVES.has(name)) {
      const family = name.split("/")[0];
      if (!names.has(family)) names.set(family, new Set());
      names.get(family).add(name);
    }
    const rank = (name) => { const i = FIRST.findIndex((one) => name === one || name.startsWith(one)); return i < 0 ? FIRST.length : i; };
    const ordered = [...names.keys()].sort((a, b) => rank(a) - rank(b));
    const drawn = ordered.map((family) => {
      const members = [...names.get(family)].slice(0, 6);
      return chart(words(family), members.map((name) => ({
        name: words(name === family ? family : name.slice(family.length + 1)),
        points: lines.filter((line) => name in line).map((line) => [line.step, line[name]]),
      })));
    }).filter(Boolean);
    charts.replaceChildren(...(drawn.length ? drawn.slice(0, SHOWN) : [nothing("No step has been logged yet.")]));
    more.replaceChildren(...drawn.slice(SHOWN));
    moreBox.hidden = drawn.length <= SHOWN;
    const last = lines.at(-1);
    about.replaceChildren(
      facts(last ? fact("steps", count(last.step)) : null,
        ["model", "train_file", "learning_rate", "batch_size", "seed"].filter((name) => settings && settings[name] !== undefined && settings[name] !== null)
          .map((name) => fact(words(name), typeof settings[name] === "number" ? number(settings[name]) : String(settings[name])))),
    );
  }
  await read();
  const others = training.length > 1 ? h("nav", { class: "tabs", "aria-label": "training runs" }, training.map((one) => {
    const to = link("training", { folder: one }, one.split("/").slice(-2).join("/"));
    if (one === folder) to.setAttribute("aria-current", "page");
    return to;
  })) : null;
  const all = h("details", { class: "more" }, h("summary", {}, "all settings"), h("dl", { class: "settings" },
    Object.entries(settings ?? {}).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, typeof value === "object" ? JSON.stringify(value) : String(value))])));
  return {
    title: `Training · ${folder}`,
    node: h("div", {}, h("header", { class: "head row" }, h("h1", {}, "Training"), badge), others, about, charts, moreBox, all),
    close: () => clearTimeout(timer),
  };
}
