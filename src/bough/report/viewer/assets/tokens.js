// The exact tokens of a call: context plain, completion tokens coloured by the chosen quantity.
import { ask } from "./api.js";
import { h } from "./dom.js";
import { count, number, signed } from "./format.js";

const TAIL = 160;
const GAP = "gap to the trainer";

export function tokensOf(where, turnNumber, turn) {
  const body = h("div", { class: "tokens" }, h("p", { class: "faint", role: "status" }, "loading the tokens …"));
  ask("tokens", { ...where, turn: turnNumber }).then(
    (found) => body.replaceChildren(...view(found, turn)),
    (error) => body.replaceChildren(h("p", { class: "faint" }, error.message)),
  );
  return body;
}

function view(found, turn) {
  if (found.missing) return [h("p", { class: "faint" }, found.missing)];
  const { prompt, completion } = found;
  const texts = (part) => part.texts ?? part.ids.map((id) => `${id} `);
  const mode = { name: completion.logprobs ? "log-probability" : "trained" };
  const answer = h("span", { class: "answer" });
  const legend = h("p", { class: "legend" });
  function draw() {
    answer.replaceChildren(...texts(completion).map((one, i) => token(one, completion, i, turn, mode.name)));
    legend.replaceChildren(...explain(mode.name, turn, completion));
  }
  const choices = ["trained", completion.logprobs && "log-probability", completion.trained_logprobs && GAP, turn.advantage !== null && turn.advantage !== undefined && "advantage"].filter(Boolean);
  const buttons = choices.map((name) => h("button", { type: "button", "aria-pressed": String(name === mode.name), on: { click: (event) => {
    mode.name = name;
    for (const one of buttons) one.setAttribute("aria-pressed", String(one === event.currentTarget));
    draw();
  } } }, name));
  draw();
  const fresh = texts(prompt).slice(found.shared);
  const first = fresh.length > TAIL * 2 ? fresh.length - TAIL : 0;
  const early = texts(prompt).slice(0, found.shared + first);
  return [
    h("div", { class: "token-head" },
      h("span", { class: "faint" }, `${count(prompt.ids.length + prompt.left_out)} tokens of context, ${count(completion.ids.length)} in the completion · ${found.source}`),
      h("span", { class: "buttons", role: "group", "aria-label": "colour the completion tokens by" }, buttons),
    ),
    found.why_no_text ? h("p", { class: "faint" }, `Shown as ids: ${found.why_no_text}.`) : null,
    h("div", { class: "token-text" },
      early.length ? h("details", {},
        h("summary", {}, found.shared ? `${count(found.shared + prompt.left_out)} tokens shared with the previous call` : `${count(early.length + prompt.left_out)} earlier tokens of context`),
        h("span", { class: "context" }, prompt.left_out ? `(${count(prompt.left_out)} left out) ` : "", early.join("")),
      ) : null,
      h("span", { class: "context" }, fresh.slice(first).join("")),
      answer,
    ),
    legend,
  ].filter(Boolean);
}

function token(text, completion, i, turn, mode) {
  const value = completion.logprobs ? completion.logprobs[i] : null;
  const gap = completion.trained_logprobs ? completion.trained_logprobs[i] - value : null;
  const title = [`id ${completion.ids[i]}`, value === null ? null : `log-probability ${number(value)} (${(100 * Math.exp(value)).toPrecision(3)}%)`,
    gap === null ? null : `trainer's log-probability ${number(completion.trained_logprobs[i])}, gap ${Math.abs(gap).toPrecision(2)}`,
    turn.advantage === null || turn.advantage === undefined ? null : `advantage ${signed(turn.advantage)}`].filter(Boolean).join("\n");
  return h("span", { class: `token ${mode === GAP ? `surprise-${size(gap)}` : shade(mode, value, turn)}`, title }, text);
}

// Powers of ten: below 0.0001 is float32 rounding, above 0.1 calls for importance sampling.
function size(gap) {
  return Math.min(4, Math.max(0, Math.ceil(Math.log10(Math.abs(gap) + 1e-12)) + 4));
}

// Five steps of one hue for how unlikely a token was; two hues for the sign of an advantage.
function shade(mode, value, turn) {
  if (mode === "log-probability") return value === null ? "" : `surprise-${Math.min(4, Math.floor(-value / 1.2))}`;
  if (mode === "advantage") {
    const size = Math.min(4, Math.ceil(Math.abs(turn.advantage) * 2));
    return size === 0 ? "zero" : `${turn.advantage > 0 ? "gain" : "loss"}-${size}`;
  }
  return turn.trained === false ? "untrained" : "trained";
}

function explain(mode, turn, completion) {
  const box = (kind, text) => h("span", {}, h("span", { class: `token swatch ${kind}` }, " "), ` ${text}`);
  if (mode === "log-probability") {
    const total = completion.logprobs.reduce((sum, one) => sum + one, 0);
    return [box("surprise-0", "likely"), box("surprise-2", "surprising"), box("surprise-4", "very surprising"), h("span", { class: "faint" }, `sum ${number(total)}`)];
  }
  if (mode === GAP) {
    const gaps = completion.trained_logprobs.map((one, i) => Math.abs(one - completion.logprobs[i]));
    return [box("surprise-0", "below 0.0001"), box("surprise-2", "0.001 to 0.01"), box("surprise-4", "above 0.1"), h("span", { class: "faint" }, `sampler against trainer, at most ${Math.max(...gaps).toPrecision(2)}`)];
  }
  if (mode === "advantage") return [box("gain-3", "made more likely"), box("loss-3", "made less likely"), h("span", { class: "faint" }, `advantage ${signed(turn.advantage)} on each token`)];
  return [box("trained", turn.trained === false ? "not trained" : "trained"), h("span", { class: "context" }, "context, never trained"), turn.trained === false ? h("span", { class: "faint" }, "this reply serves as context only") : ""];
}
