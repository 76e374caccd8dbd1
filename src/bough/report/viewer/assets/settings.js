// Settings of training runs: one list, or a table of several runs side by side that marks what differs.
import { h } from "./dom.js";
import { number } from "./format.js";
import { table } from "./table.js";

// runs: [{ name, settings }].
export function settingsOf(runs) {
  const flat = runs.map((run) => flatten(run.settings ?? {}));
  // Where a run was written, and whether it was resumed, says nothing about how it was trained.
  if (runs.length > 1) for (const one of flat) for (const name of ["output_dir", "resume"]) one.delete(name);
  const names = [...new Set(flat.flatMap((one) => [...one.keys()]))];
  if (!names.length) return null;
  const differs = (name) => new Set(flat.map((one) => one.get(name))).size > 1;
  if (runs.length === 1) {
    return h("details", { class: "more" }, h("summary", {}, "all settings"), h("dl", { class: "settings" },
      names.map((name) => [h("dt", {}, name), h("dd", { class: "mono" }, flat[0].get(name))])));
  }
  const different = names.filter(differs);
  const place = h("div", { class: "scroll" });
  const only = h("input", { type: "checkbox", id: "only-differences", "aria-label": "only settings that differ", checked: different.length > 0, on: { change: () => draw() } });
  function draw() {
    const shown = only.checked ? different : names;
    const columns = [{ label: "setting", first: true }, ...runs.map((run) => ({ label: run.name }))];
    const rows = shown.map((name) => ({ class: differs(name) ? "differs" : null, cells: [name, ...flat.map((one) => h("span", { class: "mono" }, one.get(name) ?? "–"))] }));
    place.replaceChildren(shown.length ? table("settings side by side", columns, rows) : h("p", { class: "faint" }, "All settings are the same."));
  }
  draw();
  return h("section", { class: "compared" },
    h("div", { class: "head row" }, h("h2", {}, "Settings side by side"), h("label", { class: "faint" }, only, ` only the ${different.length} of ${names.length} that differ`)),
    place);
}

// Nested settings by their dotted names, values as they are written.
function flatten(settings, before = "", found = new Map()) {
  for (const [name, value] of Object.entries(settings)) {
    const whole = before + name;
    if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) flatten(value, `${whole}.`, found);
    else found.set(whole, written(value));
  }
  return found;
}

export function written(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(", ") || "–";
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" ? number(value) : String(value);
}
