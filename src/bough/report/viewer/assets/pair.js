// A preference pair: the shared history folded, then the two continuations side by side.
import { ask } from "./api.js";
import { address, h, link } from "./dom.js";
import { number, plural, words } from "./format.js";
import { chip, fact, facts } from "./marks.js";
import { message, observation, reply, turnFacts } from "./turns.js";

export async function pairPage(asked) {
  const found = await ask("record", { at: asked.at });
  const file = found.at.slice(0, found.at.lastIndexOf(":"));
  const to = (line) => (line === null ? null : address("pair", { at: `${file}:${line}` }));
  const go = (line) => { if (line !== null) location.hash = to(line); };
  const { previous, next } = found.beside;
  const history = found.start.length + 2 * found.shared.length;
  const round = found.start.filter((one) => one.role === "assistant").length + found.shared.length + 1;
  const node = h("article", {},
    h("header", { class: "head" },
      h("p", { class: "crumbs" }, link("pairs", { file }, file), " · line ", found.at.slice(found.at.lastIndexOf(":") + 1)),
      h("h1", {}, found.goal || found.task.id),
      h("p", { class: "lead" }, chip(found.reason ?? "no reason given"), h("span", { class: "faint" }, `they diverge at reply ${round}`)),
      h("p", { class: "links" },
        previous === null ? h("span", { class: "faint" }, "← previous") : h("a", { href: to(previous) }, "← previous"),
        next === null ? h("span", { class: "faint" }, "next →") : h("a", { href: to(next) }, "next →")),
      facts(
        found.margin === null ? null : fact("margin", number(found.margin)),
        fact("task", found.task.id),
        Object.entries(found.info).filter(([, value]) => value !== null && typeof value !== "object").slice(0, 8).map(([name, value]) => fact(words(name), typeof value === "number" ? number(value) : String(value).slice(0, 120))),
      ),
    ),
    h("details", { class: "start" },
      h("summary", {}, `the shared history: ${plural(history, "message")}`),
      found.start.map((one) => message(one)),
      found.shared.map((turn) => [reply(turn), observation(turn)]),
    ),
    h("div", { class: "parting", role: "separator" }, h("span", {}, "from here on they differ")),
    h("div", { class: "sides" }, side("chosen", "success", found.chosen), side("rejected", "failure", found.rejected)),
  );
  return { title: found.goal || "Pair", node, keys: { n: () => go(next), p: () => go(previous) } };
}

function side(name, kind, turns) {
  return h("section", { class: `side ${kind}`, "aria-label": name },
    h("h2", {}, name, h("span", { class: "faint" }, ` ${turns.length === 1 ? "1 reply" : `${turns.length} replies`}`)),
    h("ol", { class: "turns" }, turns.map((turn) => h("li", { class: "turn" }, h("div", { class: "turn-head" }, turnFacts(turn)), reply(turn), observation(turn)))),
  );
}
