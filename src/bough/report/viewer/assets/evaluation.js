// Evaluations: rates with intervals, every model against every other, how they fail; each number leads to its episodes.
import { ask } from "./api.js";
import { h, link } from "./dom.js";
import { empty } from "./empty.js";
import { count, ending, number, percent, plural, probability, signed, words } from "./format.js";
import { fact, facts, interval, nothing } from "./marks.js";
import { table } from "./table.js";

export async function evaluationPage(asked) {
  const { evaluations } = await ask("overview");
  if (!evaluations.length) return { title: "Evaluation", node: h("div", {}, h("h1", {}, "Evaluation"), empty("evaluation")) };
  const folder = asked.folder ?? evaluations.at(-1);
  const found = await ask("evaluation", { folder });
  const tabs = evaluations.length > 1 ? h("nav", { class: "tabs", "aria-label": "evaluations" }, evaluations.map((one) => {
    const to = link("evaluation", { folder: one }, one.split("/").slice(-2).join("/"));
    if (one === folder) to.setAttribute("aria-current", "page");
    return to;
  })) : null;
  const level = percent(found.level, 0);
  const node = h("div", {},
    h("header", { class: "head row" }, h("h1", {}, "Evaluation")),
    tabs,
    facts(fact("environment", found.environment), found.split ? fact("split", found.split) : null, fact("seed", found.seed), fact("attempts per task", found.attempts),
      Object.entries(found.options).map(([name, value]) => fact(words(name), Array.isArray(value) ? value.join(", ") : JSON.stringify(value)))),
    h("section", {}, h("h2", {}, "Success, with its ", level, " interval"), summary(found)),
    found.models.length > 1 ? h("section", {}, h("h2", {}, "Comparison"), matrix(found)) : null,
    types(found),
    failures(found),
  );
  return { title: "Evaluation", node };
}

function episodes(model, words_, ...text) {
  return model.file ? link("trajectories", { file: model.file, ...words_ }, ...text) : h("span", {}, ...text);
}

function summary(found) {
  const several = (report) => Object.entries(report.pass_at).filter(([k]) => Number(k) > 1);
  const attempts = found.models.some((model) => several(model.report).length);
  const columns = [{ label: "model", first: true }, { label: "", wide: true }, { label: "success", num: 1 }, { label: "interval", num: 1 }, { label: "episodes", num: 1 }, { label: "reward", num: 1 },
    { label: "turns", num: 1 }, { label: "tokens", num: 1 }, { label: "invalid replies", num: 1 }, ...(attempts ? [{ label: "pass@k", num: 1 }] : [])];
  const rows = found.models.map((model) => {
    const { report } = model;
    const range = report.success.interval;
    return { class: model.folder === found.folder ? "current" : null, cells: [
      model.name, interval(report.success),
      h("b", {}, episodes(model, { outcome: "success" }, percent(report.success.mean))),
      range ? `${percent(range.low)} – ${percent(range.high)}` : "–",
      episodes(model, {}, `${count(report.episodes)}${report.lost ? `, ${count(report.lost)} lost` : ""}`),
      number(report.reward.mean), number(report.turns.mean), number(report.completion_tokens.mean), percent(report.invalid_rate),
      several(report).map(([k, one]) => `@${k} ${percent(one.mean, 0)}`).join(", "),
    ] };
  });
  return h("div", { class: "scroll" }, table("success of each model", columns, rows), lost(found.models));
}

function lost(models) {
  const rows = models.filter((model) => model.report.lost || model.report.unknown);
  return rows.length ? h("p", { class: "faint" }, rows.map((model) => `${model.name}: ${[model.report.lost && `${plural(model.report.lost, "episode")} lost to a broken environment or engine (the interval allows for both outcomes of each)`, model.report.unknown && `${plural(model.report.unknown, "episode")} of unknown outcome`].filter(Boolean).join(", ")}`).join("; ")) : null;
}

function matrix(found) {
  if (!found.comparisons.length) return nothing(found.why_not || "These models cannot be compared.");
  const by = new Map(found.comparisons.flatMap((one) => [[`${one.first}\0${one.second}`, [one, 1]], [`${one.second}\0${one.first}`, [one, -1]]]));
  const names = found.models.map((model) => model.name);
  return h("div", {},
    h("div", { class: "scroll" }, h("table", { class: "matrix" },
      h("caption", {}, "Success of the row minus success of the column, in percentage points, on the tasks that both played"),
      h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, names.map((row) => h("tr", {}, h("th", { scope: "row" }, row), names.map((column) => {
        const known = by.get(`${column}\0${row}`);
        if (!known) return h("td", { class: "self" }, row === column ? "" : "–");
        const [one, sign] = known;
        const mean = sign * one.success.mean;
        const range = one.success.interval ? [sign * one.success.interval.low, sign * one.success.interval.high].sort((a, b) => a - b) : null;
        return h("td", { class: one.significant ? (mean > 0 ? "better" : "worse") : "even", title: one.test },
          h("b", {}, signed(100 * mean, 1)),
          range ? h("div", { class: "small" }, `${signed(100 * range[0], 1)} to ${signed(100 * range[1], 1)}`) : null,
          h("div", { class: "small faint" }, probability(one.adjusted_p)),
          h("div", { class: "small" }, one.significant ? (mean > 0 ? "better" : "worse") : "not significant"));
      })))),
    )),
    h("p", { class: "faint" }, `${found.comparisons[0].test}; ${found.comparisons.length > 1 ? `p-values corrected for ${found.comparisons.length} comparisons (Holm)` : "one comparison"}.`),
  );
}

function types(found) {
  const names = [...new Set(found.models.flatMap((model) => Object.keys(model.report.types)))].sort();
  if (!names.length) return null;
  const columns = [{ label: "type", first: true }, ...found.models.map((model) => ({ label: model.name, num: 1 }))];
  const rows = names.map((name) => ({ cells: [words(name), ...found.models.map((model) => {
    const one = model.report.types[name];
    return one ? [episodes(model, { type: name }, percent(one.mean)), one.interval ? h("div", { class: "small faint" }, `${percent(one.interval.low, 0)} – ${percent(one.interval.high, 0)}`) : null] : "–";
  })] }));
  return h("section", {}, h("h2", {}, "By type of task"), h("div", { class: "scroll" }, table("success by type of task", columns, rows)));
}

function failures(found) {
  const rows = found.models.filter((model) => Object.keys(model.report.failures).length || Object.keys(model.report.errors).length);
  if (!rows.length) return null;
  return h("section", {}, h("h2", {}, "How episodes fail"), rows.map((model) => {
    const total = model.report.episodes;
    return h("div", { class: "fails" }, h("h3", {}, model.name),
      h("ul", { class: "bars" }, Object.entries(model.report.failures).map(([stop, n]) => h("li", {},
        h("span", {}, episodes(model, { outcome: "failure", stop }, ending(stop, false))),
        h("span", { class: "bar", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * n) / total}%` } })),
        h("span", { class: "num" }, `${count(n)} (${percent(n / total, 0)})`),
      ))),
      Object.keys(model.report.errors).length ? h("p", { class: "faint" }, "in replies: ", Object.entries(model.report.errors).map(([name, n]) => `${count(n)} ${words(name)}`).join(", ")) : null,
      made(model.report),
    );
  }));
}

function made(report) {
  const kinds = Object.entries(report.mistakes).filter(([, rate]) => rate.mean);
  return kinds.length ? h("p", { class: "faint" }, "episodes with a mistake: ", kinds.map(([kind, rate]) => `${percent(rate.mean, 0)} ${words(kind)}`).join(", ")) : null;
}
