// The curves of one or more training runs, live while a run is going.
import { ask, exported } from "./api.js";
import { chart } from "./chart.js";
import { address, h, link } from "./dom.js";
import { empty } from "./empty.js";
import { count, stageName, words } from "./format.js";
import { chip, fact, facts, nothing } from "./marks.js";
import { settingsOf, written } from "./settings.js";

// In this order where they are there; the rest follows, folded.
const FIRST = ["loss", "preference_loss", "nll", "reward", "success", "accuracy", "margin", "chosen_reward", "rejected_reward", "kl", "entropy", "token_entropy",
  "completion_length", "turns", "token_accuracy", "shared", "eval_loss", "held_out_success", "logprob_gap", "clip_fraction", "learning_rate", "grad_norm", "tokens_per_s"];
const NOT_CURVES = new Set(["step", "epoch", "seconds"]);
const FACTS = ["model", "train_file", "learning_rate", "batch_size", "seed"];
const SHOWN = 12;
const MOST = 6; // colours
const SMOOTH_FROM = 40;

export async function trainingPage(asked) {
  const { training, evolutions } = await ask("overview");
  if (!training.length) return { title: "Training", node: h("div", {}, h("header", { class: "head" }, h("h1", {}, "Training")), empty("training")) };
  const runs = new Map(); // by folder: { lines, next, settings, state }
  const view = { smoothing: null, from: -Infinity, to: Infinity, zoom };
  let picked = [];
  let timer = null;
  const badge = h("span", { role: "status" });
  const picker = h("fieldset", { class: "runs-picker", hidden: training.length < 2 });
  const controls = h("div", { class: "controls" });
  const about = h("div", {});
  const charts = h("div", { class: "charts" });
  const more = h("div", { class: "charts" });
  const moreBox = h("details", { class: "more" }, h("summary", {}, "more curves"), more);
  const settings = h("div", {});

  function take(words_) {
    const wanted = [words_.folder ?? training[0], ...(words_.also ?? "").split("\n")].filter((one) => one === words_.folder || training.includes(one));
    picked = [...new Set(wanted)].slice(0, MOST);
    const bound = (name, none) => (words_[name] && Number.isFinite(Number(words_[name])) ? Number(words_[name]) : none);
    [view.from, view.to] = [bound("from", -Infinity), bound("to", Infinity)];
    const smoothing = bound("smoothing", null);
    view.smoothing = smoothing === null ? null : Math.min(0.99, Math.max(0, smoothing));
  }
  function keep() {
    const finite = (value) => (Number.isFinite(value) ? value : null);
    history.replaceState(null, "", address("training", { folder: picked[0], also: picked.slice(1).join("\n"), smoothing: view.smoothing, from: finite(view.from), to: finite(view.to) }));
  }
  function zoom(from, to) {
    [view.from, view.to] = [from ?? -Infinity, to ?? Infinity];
    keep();
    draw();
  }
  async function update(words_) {
    take(words_);
    await read();
  }
  async function read() {
    clearTimeout(timer);
    const answers = await Promise.all(picked.map(readOne));
    draw();
    if (!exported && answers.some((state) => state === "running")) timer = setTimeout(() => read().catch(() => {}), 2000);
  }
  async function readOne(folder) {
    const run = runs.get(folder) ?? { lines: [], next: 0, settings: null };
    let found;
    do {
      found = await ask("training", { folder, after: run.next || null });
      if (found.from < run.next) run.lines.length = 0;
      for (const line of found.lines) run.lines.push(line); // too many for the arguments of one call
      run.next = found.next;
      if (found.settings) run.settings = found.settings;
      run.state = found.state;
    } while (found.more && found.lines.length && !exported);
    runs.set(folder, run);
    return run.state;
  }
  function draw() {
    const states = picked.map((folder) => runs.get(folder).state);
    badge.replaceChildren(states.includes("running") ? h("span", { class: "live" }, "live") : states.every((state) => state === "done") ? "" : chip("interrupted", "interrupted"));
    const longest = Math.max(0, ...picked.map((folder) => runs.get(folder).lines.length));
    const smoothing = view.smoothing ?? (longest >= SMOOTH_FROM ? 0.8 : 0);
    drawPicker();
    drawControls(smoothing);
    const drawn = curves(picked.map((folder) => ({ name: stageName(folder), lines: runs.get(folder).lines })))
      .map(([title, series]) => chart(title, series, { ...view, smoothing })).filter(Boolean);
    const none = longest ? "No step lies in this range." : "No step has been logged yet. The first line appears when the first step is done.";
    charts.replaceChildren(...(drawn.length ? drawn.slice(0, SHOWN) : [nothing(none)]));
    more.replaceChildren(...drawn.slice(SHOWN));
    moreBox.hidden = drawn.length <= SHOWN;
    const one = picked.length === 1 ? runs.get(picked[0]) : null;
    about.replaceChildren(one ? facts(one.lines.length ? fact("steps", count(one.lines.at(-1).step)) : null,
      FACTS.filter((name) => (one.settings?.[name] ?? null) !== null).map((name) => fact(words(name), written(one.settings[name])))) : "",
      one && evolutions.includes(picked[0]) ? h("p", { class: "links" }, link("evolution", { folder: picked[0] }, "members and family tree")) : "");
    settings.replaceChildren(settingsOf(picked.map((folder) => ({ name: stageName(folder), settings: runs.get(folder).settings }))) ?? "");
  }
  function drawPicker() {
    const boxes = training.map((folder, i) => {
      const slot = picked.indexOf(folder);
      const box = h("input", { type: "checkbox", id: `run-${i}`, "aria-label": stageName(folder), checked: slot >= 0, disabled: slot < 0 && picked.length >= MOST, on: { change: () => {
        const next = box.checked ? [...picked, folder] : picked.filter((one) => one !== folder);
        if (next.length) { picked = next; keep(); }
        read().catch((error) => charts.replaceChildren(nothing(error.message)));
      } } });
      return h("label", { class: slot >= 0 ? "on" : "" }, box, slot >= 0 ? h("span", { class: `swatch series-${slot}` }) : null, ` ${stageName(folder)}`);
    });
    refill(picker, [h("legend", { class: "hidden" }, "runs in the charts"), ...boxes]);
  }
  function drawControls(smoothing) {
    const value = h("output", { class: "faint" }, smoothing ? smoothing.toFixed(2) : "off");
    const slider = h("input", { type: "range", id: "smoothing", "aria-label": "smoothing", min: 0, max: 0.99, step: 0.01, value: smoothing, on: {
      input: () => { view.smoothing = Number(slider.value); keep(); draw(); },
    } });
    const bound = (name, label) => {
      const field = h("input", { type: "number", id: `zoom-${name}`, min: 0, step: 1, placeholder: label, "aria-label": `${label} step`, value: Number.isFinite(view[name]) ? view[name] : "", on: {
        change: () => zoom(name === "from" ? number(field, view.from) : view.from, name === "to" ? number(field, view.to) : view.to),
      } });
      return field;
    };
    const number = (field) => (field.value === "" ? null : Number(field.value));
    const zoomed = Number.isFinite(view.from) || Number.isFinite(view.to);
    refill(controls, [
      h("label", {}, h("span", { class: "faint" }, "smoothing"), slider, value),
      h("span", { class: "range" }, h("span", { class: "faint" }, "steps"), bound("from", "first"), "–", bound("to", "last")),
      zoomed ? h("button", { type: "button", id: "zoom-out", on: { click: () => zoom(null, null) } }, "show all steps") : h("span", { class: "faint small" }, "drag across a chart to zoom"),
    ]);
  }
  take(asked);
  await read();
  return {
    title: "Training",
    node: h("div", {}, h("header", { class: "head row" }, h("h1", {}, "Training"), badge), picker, about, controls, charts, moreBox, settings),
    update,
    close: () => clearTimeout(timer),
  };
}

// New contents for a form, with the focus where it was: a slider that is dragged must not be lost.
function refill(place, parts) {
  const focus = place.contains(document.activeElement) ? document.activeElement : null;
  if (focus?.type === "range") {
    place.querySelector("output").replaceWith(h("output", { class: "faint" }, Number(focus.value) ? Number(focus.value).toFixed(2) : "off"));
    return;
  }
  place.replaceChildren(...parts);
  if (focus?.id) document.getElementById(focus.id)?.focus();
}

// What is drawn: [title, series]. One run has a chart for each family of metrics, several runs one for each metric.
function curves(runs) {
  const names = new Set();
  for (const run of runs) for (const line of run.lines) for (const name in line) names.add(name);
  const families = new Map();
  for (const name of names) if (!NOT_CURVES.has(name)) {
    const family = runs.length > 1 ? name : name.split("/")[0];
    families.set(family, [...(families.get(family) ?? []), name]);
  }
  const rank = (name) => { const i = FIRST.findIndex((one) => name === one || name.startsWith(one)); return i < 0 ? FIRST.length : i; };
  const points = (run, name) => run.lines.filter((line) => name in line).map((line) => [line.step, line[name]]);
  return [...families.keys()].sort((a, b) => rank(a) - rank(b)).map((family) => [words(family), runs.length > 1
    ? runs.map((run, slot) => ({ name: run.name, slot, points: points(run, family) })).filter((one) => one.points.length)
    : families.get(family).slice(0, MOST).map((name, slot) => ({ name: words(name === family ? family : name.slice(family.length + 1)), slot, points: points(runs[0], name) }))]);
}
