// Messages and turns: what was thought, done and observed.
import { h } from "./dom.js";
import { count, number, plural, signed, words } from "./format.js";
import { chip } from "./marks.js";

// A longer text is cut at first, so that one record cannot stall the page.
const LONG = 6000;
// Of a reply's tool calls and a call's arguments no more than these are drawn.
const MANY = 100;

function text(content, kind) {
  const plain = String(content ?? "");
  const shown = h("div", { class: `text ${kind ?? ""}` }, plain.slice(0, LONG));
  if (plain.length <= LONG) return shown;
  const more = h("button", { type: "button", class: "plain", on: { click: () => shown.replaceChildren(plain) } }, ` … ${count(plain.length - LONG)} more characters`);
  shown.append(more);
  return shown;
}

export function message(one, kind) {
  if (one.role === "assistant") return reply({ reply: one });
  return h("div", { class: `message ${one.role} ${kind ?? ""}` },
    h("div", { class: "who" }, one.role === "user" ? "environment" : one.role === "tool" ? "tool result" : one.role, one.name ? ` · ${one.name}` : ""),
    one.content ? text(one.content) : null,
    one.hint ? h("details", { class: "hint" }, h("summary", {}, "hint (in the prompt only while it is the newest message)"), text(one.hint)) : null,
  );
}

// A tool call: short arguments on one line, longer ones each in a box, so that code reads as code.
function toolCall(call) {
  const all = Object.entries(call.arguments ?? {});
  const given = all.slice(0, MANY).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value), typeof value === "string"]);
  const short = given.every(([, value]) => !value.includes("\n")) && given.reduce((sum, [name, value]) => sum + name.length + value.length, 0) < 90;
  if (short) {
    return h("div", { class: "text action call" }, h("b", { class: "tool-name" }, call.name), "(", given.map(([name, value, quoted], i) => [
      i ? ", " : "", h("span", { class: "faint" }, `${name}=`), quoted ? `"${value}"` : value,
    ]), ")");
  }
  return h("div", { class: "call" }, h("b", { class: "tool-name mono" }, call.name),
    h("dl", { class: "arguments" }, given.map(([name, value]) => [h("dt", {}, name), h("dd", {}, text(value, "code"))])), others(all, "argument"));
}

export function reply(turn) {
  const { parts = [], hint } = turn.reply;
  return h("div", { class: "message assistant" },
    parts.slice(0, MANY).map((part) => (part.kind === "call" ? labelled("tool call", toolCall(part)) : labelled(part.kind === "broken call" ? "tool call that cannot be read" : part.kind, text(part.text, part.kind === "broken call" ? "code" : part.kind)))),
    others(parts, "part"),
    parts.length ? null : h("p", { class: "faint" }, "an empty reply"),
    hint ? h("details", { class: "hint" }, h("summary", {}, "hint"), text(hint)) : null,
  );
}

function others(all, word) {
  return all.length > MANY ? h("p", { class: "faint" }, `and ${plural(all.length - MANY, `more ${word}`)}`) : null;
}

function labelled(name, node) {
  return h("div", { class: "part" }, h("div", { class: "who" }, name), node);
}

export function observation(turn) {
  return (turn.observation ?? []).map((one) => message(one, "seen"));
}

// Of a turn outside the conversation, what it was asked that the conversation does not show.
export function branchOf(turn) {
  if (!turn.branch) return null;
  const { messages, left_out } = turn.branch;
  return h("div", { class: "branch-head" }, chip("outside the conversation", "branch"),
    messages.length ? h("details", {}, h("summary", {}, `its prompt: ${plural(messages.length + left_out, "message")} not shown above`),
      messages.map((one) => message(one)), left_out ? h("p", { class: "faint" }, `and ${plural(left_out, "more message")}`) : null) : null);
}

export function turnFacts(turn) {
  return [
    turn.error ? chip(words(turn.error), "bad") : null,
    turn.reward === undefined || turn.reward === null ? null : h("span", { class: "value" }, "reward ", h("b", {}, number(turn.reward))),
    turn.progress === undefined || turn.progress === null ? null : h("span", { class: "value" }, "progress ", h("b", {}, number(turn.progress))),
    turn.advantage === undefined || turn.advantage === null ? null : h("span", { class: "value" }, "advantage ", h("b", {}, signed(turn.advantage))),
    turn.call ? h("span", { class: "value faint" }, `${count(turn.call.prompt_tokens)} + ${count(turn.call.completion_tokens)} tokens`) : null,
    turn.trained === false ? chip("context only") : null,
  ];
}
