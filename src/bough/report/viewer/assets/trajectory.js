// One trajectory, turn by turn.
import { ask, imageSource } from "./api.js";
import { address, h, link } from "./dom.js";
import { agentName, count, ending, number, words } from "./format.js";
import { chip, fact, facts, outcome } from "./marks.js";
import { branchOf, message, observation, reply, turnFacts } from "./turns.js";
import { tokensOf } from "./tokens.js";

// Further turns are drawn on request.
const AT_ONCE = 60;

export async function trajectoryPage(asked) {
  const where = { at: asked.at, attempt: asked.attempt };
  const found = await ask("record", where);
  const file = found.at.slice(0, found.at.lastIndexOf(":"));
  const cards = [];
  let current = -1;
  const list = h("ol", { class: "turns" });
  const draw = (upTo) => {
    while (cards.length < Math.min(upTo, found.turns.length)) {
      cards.push(card(found, cards.length, where));
      list.append(cards.at(-1));
    }
    rest.hidden = cards.length >= found.turns.length;
    rest.textContent = `show the other ${count(found.turns.length - cards.length)} turns`;
  };
  const rest = h("button", { type: "button", on: { click: () => draw(found.turns.length) } });
  draw(AT_ONCE);

  const beside = found.beside;
  const to = (step) => {
    if (beside.attempts !== undefined) {
      const next = Number(asked.attempt) + step;
      return next >= 0 && next < beside.attempts ? address("trajectory", { at: found.at, attempt: next }) : null;
    }
    const line = step < 0 ? beside.previous : beside.next;
    return line === null ? null : address("trajectory", { at: `${file}:${line}` });
  };
  const go = (step) => { const there = to(step); if (there) location.hash = there; };
  const move = (step) => {
    current = Math.max(0, Math.min(cards.length - 1, current + step));
    cards[current]?.focus({ preventScroll: true });
    cards[current]?.scrollIntoView({ block: "start", behavior: "auto" });
  };
  const info = Object.entries(found.info).filter(([name]) => !["agent"].includes(name));
  const node = h("article", {},
    h("header", { class: "head" },
      h("p", { class: "crumbs" }, link("trajectories", { file }, file), " · line ", found.at.slice(found.at.lastIndexOf(":") + 1),
        found.group ? ` · attempt ${Number(asked.attempt) + 1} of ${beside.attempts}` : ""),
      h("h1", {}, found.goal || found.id),
      h("p", { class: "lead" }, outcome(found.success), found.stop ? chip(ending(found.stop, found.success)) : null, h("span", { class: "faint mono" }, found.id)),
      h("p", { class: "links" },
        to(-1) ? h("a", { href: to(-1) }, "← previous") : h("span", { class: "faint" }, "← previous"),
        to(1) ? h("a", { href: to(1) }, "next →") : h("span", { class: "faint" }, "next →"),
        found.group || found.siblings ? link("tree", { at: found.at }, "all attempts as a tree") : null,
      ),
      facts(
        Object.entries(found.rewards).map(([name, value]) => fact(`reward: ${words(name)}`, value === null ? "not scored" : number(value))),
        fact("turns", count(found.turns.length)),
        found.turns.some((turn) => turn.branch) ? fact("outside the conversation", count(found.turns.filter((turn) => turn.branch).length)) : null,
        found.info.agent ? fact("agent", agentName(found.info.agent)) : null,
        found.task.environment ? fact("environment", found.task.environment) : null,
        info.filter(([, value]) => value !== null && typeof value !== "object").slice(0, 8).map(([name, value]) => fact(words(name), typeof value === "number" ? number(value) : String(value).slice(0, 120))),
      ),
    ),
    strip(found.turns, (i) => { draw(i + 1); current = i - 1; move(1); }),
    found.start.some((one) => one.role === "system") ? h("details", { class: "start" },
      h("summary", {}, "system prompt"), found.start.filter((one) => one.role === "system").map((one) => message(one))) : null,
    h("section", { class: "turn opening", "aria-label": "the start" },
      found.start.filter((one) => one.role !== "system").map((one) => message(one)), pictures(found, where, 0)),
    list, rest,
  );
  return {
    title: found.goal || found.id,
    node,
    keys: {
      j: () => move(1), k: () => move(-1), n: () => go(1), p: () => go(-1),
      t: () => { const one = cards[Math.max(0, current)]?.querySelector("details.exact"); if (one) one.open = !one.open; },
    },
  };
}

// One cell per turn shows where the errors and rewards are.
function strip(turns, jump) {
  if (turns.length < 2) return null;
  return h("nav", { class: "strip", "aria-label": "turns" }, turns.slice(0, 400).map((turn, i) => h("button", {
    type: "button", class: `${turn.error ? "error" : turn.reward > 0 ? "good" : ""}${turn.branch ? " aside" : ""}`, "aria-label": `turn ${i + 1}${turn.branch ? ", outside the conversation" : ""}${turn.error ? `, ${words(turn.error)}` : ""}`,
    title: `${i + 1}${turn.label ? `: ${turn.label.slice(0, 80)}` : ""}`, on: { click: () => jump(i) },
  })));
}

function card(found, i, where) {
  const turn = found.turns[i];
  const exact = h("details", { class: "exact", on: { toggle: () => {
    if (exact.open && exact.childElementCount === 1) exact.append(tokensOf(where, i, turn));
  } } }, h("summary", {}, "exact tokens"));
  return h("li", { class: turn.branch ? "turn aside" : "turn", tabindex: "-1" },
    h("div", { class: "turn-head" }, h("span", { class: "turn-number" }, count(i + 1)), turnFacts(turn)),
    branchOf(turn),
    reply(turn),
    turn.correction ? h("div", { class: "correction" }, h("div", { class: "who" }, "corrected to"), reply({ reply: turn.correction })) : null,
    observation(turn),
    pictures(found, where, i + 1),
    exact,
  );
}

function pictures(found, where, turn) {
  return found.images.filter((one) => one.turn === turn).map((one) => h("img", {
    src: imageSource({ ...where, number: one.number }), alt: turn ? `the screen after turn ${turn}` : "the screen at the start", loading: "lazy", class: "screen",
  }));
}
