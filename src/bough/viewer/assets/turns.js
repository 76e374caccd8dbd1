// Messages and turns: what was thought, done and seen.
import { h } from "./dom.js";
import { count, number, signed, words } from "./format.js";
import { chip } from "./marks.js";

// A text longer than this opens in parts: one record must not stall the page.
const LONG = 6000;

export function text(content, kind) {
  const plain = String(content ?? "");
  const shown = h("div", { class: `text ${kind ?? ""}` }, plain.slice(0, LONG));
  if (plain.length <= LONG) return shown;
  const more = h("button", { type: "button", class: "plain", on: { click: () => shown.replaceChildren(plain) } }, ` … ${count(plain.length - LONG)} more characters`);
  shown.append(more);
  return shown;
}

// THOUGHT: … ACTION: …, <think>…</think>, <tool_call>…</tool_call>; anything else is said as it stands.
export function parts(content) {
  const thinking = /^\s*<think>([\s\S]*?)(?:<\/think>|$)([\s\S]*)$/.exec(content);
  if (thinking) return [["thought", thinking[1].trim()], ...parts(thinking[2])].filter(([, said]) => said);
  const spoken = /^\s*(?:THOUGHT|Thought|thought|THINK|Think):\s*([\s\S]*?)\s*^(?:ACTION|Action|action|ACT|Act):\s*([\s\S]*)$/m.exec(content);
  if (spoken) return [["thought", spoken[1]], ["action", spoken[2].trim()]].filter(([, said]) => said);
  const acted = /^\s*(?:ACTION|Action|action|ACT|Act):\s*([\s\S]*)$/.exec(content);
  if (acted) return [["action", acted[1].trim()]];
  const call = /^([\s\S]*?)<tool_call>\s*([\s\S]*?)\s*(?:<\/tool_call>\s*)?$/.exec(content);
  if (call) return [["thought", call[1].trim()], ["action", call[2]]].filter(([, said]) => said);
  return content.trim() ? [["said", content.trim()]] : [];
}

export function message(one, kind) {
  return h("div", { class: `message ${one.role} ${kind ?? ""}` },
    h("div", { class: "who" }, one.role === "user" ? "world" : one.role, one.name ? ` · ${one.name}` : ""),
    one.reasoning ? text(one.reasoning, "thought") : null,
    one.content ? text(one.content) : null,
    (one.tool_calls ?? []).map(toolCall),
    one.hint ? h("details", { class: "hint" }, h("summary", {}, "hint (seen only while newest)"), text(one.hint)) : null,
  );
}

function toolCall(call) {
  return h("div", { class: "text action" }, `${call.name}(`, Object.entries(call.arguments ?? {}).map(([name, value], i) => [
    i ? ", " : "", `${name}=`, typeof value === "string" ? value : JSON.stringify(value),
  ]), ")");
}

export function reply(turn) {
  const one = turn.reply;
  // A reply that is nothing but the action is shown as one.
  const bare = turn.action && (one.content ?? "").trim() === turn.action.trim();
  const found = bare ? [["action", turn.action]] : parts(one.content ?? "");
  return h("div", { class: "message assistant" },
    one.reasoning ? labelled("thought", text(one.reasoning, "thought")) : null,
    found.map(([kind, said]) => labelled(kind === "said" ? "reply" : kind, text(said, kind))),
    (one.tool_calls ?? []).map((call) => labelled("action", toolCall(call))),
    found.length || one.reasoning || (one.tool_calls ?? []).length ? null : h("p", { class: "faint" }, "an empty reply"),
  );
}

function labelled(name, node) {
  return h("div", { class: "part" }, h("div", { class: "who" }, name), node);
}

export function observation(turn) {
  return (turn.observation ?? []).map((one) => message(one, "seen"));
}

export function turnFacts(turn) {
  return [
    turn.error ? chip(words(turn.error), "bad") : null,
    turn.reward === undefined || turn.reward === null ? null : h("span", { class: "value" }, "reward ", h("b", {}, number(turn.reward))),
    turn.progress === undefined || turn.progress === null ? null : h("span", { class: "value" }, "progress ", h("b", {}, number(turn.progress))),
    turn.weight === undefined || turn.weight === null ? null : h("span", { class: "value" }, "weight ", h("b", {}, number(turn.weight))),
    turn.advantage === undefined || turn.advantage === null ? null : h("span", { class: "value" }, "advantage ", h("b", {}, signed(turn.advantage))),
    turn.call ? h("span", { class: "value faint" }, `${count(turn.call.prompt_tokens)} + ${count(turn.call.completion_tokens)} tokens`) : null,
    turn.trained === false ? chip("context only") : null,
  ];
}
