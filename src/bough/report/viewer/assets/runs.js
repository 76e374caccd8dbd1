// The first page: runs, their stages in order, and the success rate of each evaluation.
import { ask } from "./api.js";
import { h, link } from "./dom.js";
import { empty } from "./empty.js";
import { agentName, count, duration, number, percent, plural } from "./format.js";
import { chip, interval, nothing } from "./marks.js";
import { table } from "./table.js";

const PAGES = { trajectory: "trajectories", pair: "pairs", group: "groups" };
const VERBS = { sft: "train", dpo: "train", grpo: "train", evolve: "train", training: "train", eval: "measure", collect: "play" };

export async function runsPage() {
  const body = h("div", {});
  let timer = null;
  let before = "";
  async function draw() {
    const found = await ask("overview");
    const now = JSON.stringify(found);
    if (now !== before) body.replaceChildren(...view(found));
    before = now;
    const open = found.busy || found.runs.some((run) => run.stages.some((stage) => stage.state === "running"));
    timer = open ? setTimeout(() => draw().catch(() => {}), found.busy ? 700 : 3000) : null;
  }
  await draw();
  return { title: "Runs", node: body, close: () => clearTimeout(timer) };
}

function view(found) {
  return [
    h("header", { class: "head" },
      h("h1", {}, found.name),
      h("p", { class: "lead" },
        ["trajectory", "pair", "group"].filter((kind) => found.counts[kind]).map((kind, i) => [
          i ? " · " : "",
          link(PAGES[kind], {}, plural(found.counts[kind], kind)),
        ]),
        found.busy ? h("span", { class: "busy", role: "status" }, "reading the files …") : null,
      ),
    ),
    found.runs.length ? found.runs.map(run) : found.busy ? nothing("Reading the files …") : empty("runs"),
    found.problems.length ? problems(found.problems) : null,
  ].flat().filter(Boolean);
}

function run(one) {
  const recipe = one.recipe ?? {};
  return h("section", { class: "run" },
    one.folder === null ? null : h("div", { class: "run-head" },
      h("h2", {}, one.name),
      recipe.about ? h("p", {}, recipe.about) : null,
      h("p", { class: "faint" }, [recipe.model && `model ${recipe.model}`, recipe.environment, recipe.seed !== undefined && `seed ${recipe.seed}`].filter(Boolean).join(" · ")),
    ),
    ladder(one.stages),
    h("ol", { class: "stages" }, one.stages.map(stage)),
  );
}

// The evaluations of a run below each other, on one scale.
function ladder(stages) {
  const rows = stages.flatMap((one) => one.success.map((measure) => ({ one, measure })));
  if (!rows.length) return null;
  const columns = [{ label: "evaluation", first: true }, { label: "", wide: true }, { label: "success", num: 1 }, { label: "95% interval", num: 1 }, { label: "episodes", num: 1 }];
  return h("figure", { class: "ladder" },
    h("figcaption", {}, "Success by evaluation"),
    h("div", { class: "scroll" }, table("success by evaluation", columns, rows.map(({ one, measure }) => ({ cells: [
      link("evaluation", { folder: one.folder }, one.success.length > 1 ? `${one.name} · ${agentName(measure.model)}` : one.name),
      interval(measure),
      h("b", {}, percent(measure.mean)),
      measure.interval ? `${percent(measure.interval.low)} – ${percent(measure.interval.high)}` : "–",
      `${count(measure.episodes)}${measure.lost ? `, ${count(measure.lost)} lost` : ""}`,
    ] })))),
  );
}

function stage(one) {
  const gap = one.report.logprob_gap_mean;
  return h("li", { class: `stage ${one.state.replace(" ", "-")}`, id: `stage-${one.folder}` },
    h("div", { class: "stage-head" },
      h("h3", {}, one.name),
      chip(one.verb, VERBS[one.verb]),
      one.state === "done" ? null : chip(one.state, one.state.replace(" ", "-")),
      one.lost ? chip(`${plural(one.lost, "episode")} lost`, "bad") : null,
      h("span", { class: "faint" }, duration(one.seconds)),
    ),
    one.note ? h("p", { class: "note" }, one.note) : null,
    one.made_of.length ? h("p", { class: "made" }, "made from ", one.made_of.map((part, i) => [
      i ? ", " : "",
      `${part.input.replace("_file", "").replaceAll("_", " ")} `,
      part.stage ? h("b", {}, part.stage.split("/").pop()) : h("span", { class: "mono" }, part.value.slice(0, 24)),
    ])) : null,
    h("p", { class: "links" },
      one.training ? link("training", { folder: one.folder }, "curves") : null,
      one.evolution ? link("evolution", { folder: one.folder }, "members and family tree") : null,
      one.evaluation ? link("evaluation", { folder: one.folder }, "evaluation") : null,
      one.files.map((file) => link(PAGES[file.kind], { file: file.file },
        plural(file.count, file.kind),
        file.kind === "trajectory" && file.successes + file.failures > 0 ? h("span", { class: "faint" }, ` ${percent(file.successes / (file.successes + file.failures), 0)} succeed`) : null,
      )),
    ),
    gap === undefined ? null : h("p", { class: "faint" }, `sampler–trainer gap ${number(gap)} on average, ${number(one.report.logprob_gap_max)} at most, over ${count(one.report.rescored_tokens)} tokens`),
  );
}

function problems(files) {
  return h("section", { class: "problems" },
    h("h2", {}, "Files that could not be read"),
    h("ul", {}, files.map((file) => h("li", {}, h("span", { class: "mono" }, file.file), ": ",
      file.sentence ?? Object.entries(file.reasons).map(([reason, n]) => `${count(n)} ${reason}`).join(", ")))),
  );
}
