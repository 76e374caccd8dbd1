// What can be done on a page, short of the mouse and the keys themselves, and `bough`, through which it is asked for.
class Refused extends Error {}
const resolve = (reference) => {
  if (typeof reference === "number") {
    const element = elements[reference - 1];
    if (!element || !element.isConnected) throw new Refused(`There is no element ${reference} on the page.`);
    if (!visible(element)) throw new Refused(`Element ${reference} cannot be seen now.`);
    return element;
  }
  let found;
  try { found = [...document.querySelectorAll(reference)].filter((e) => !e.closest(OUTSIDE) && e !== core.cover_div); }
  catch { throw new Refused(`${JSON.stringify(reference)} is not a CSS selector.`); }
  const element = found.find(visible);
  if (!element) throw new Refused(`There is no element ${JSON.stringify(reference)} on the page.`);
  return element;
};
const spoken = (reference) => (typeof reference === "number" ? `Element ${reference}` : JSON.stringify(reference));
const inside = (element, hit) => hit && (element === hit || element.contains(hit) || (hit.tagName === "LABEL" && hit.control === element));
// A point where the mouse would hit the element itself and nothing that lies over it.
const point = (reference) => {
  const element = resolve(reference);
  if (element.disabled) throw new Refused(`${spoken(reference)} is disabled.`);
  element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
  const boxes = [...element.getClientRects(), element.getBoundingClientRect()];
  const fractions = [0.5, 0.25, 0.75, 0.1, 0.9, 0.03, 0.97];
  let cover = null;
  for (const box of boxes) for (const v of fractions) for (const u of fractions) {
    const x = box.left + u * box.width, y = box.top + v * box.height;
    const hit = document.elementFromPoint(x, y);
    if (inside(element, hit) && (hit === element || !interactive(hit) || element.matches("select, label"))) return { x, y, icon: isIcon(hit) };
    cover = cover || hit;
  }
  for (const box of boxes) {
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const hit = document.elementFromPoint(x, y);
    if (inside(element, hit)) return { x, y, icon: isIcon(hit) };
  }
  throw new Refused(`${spoken(reference)} is covered by something else.`);
};
// Where to let go over a target; among the items of a sorted list, past its middle.
const drop = (reference, dragged) => {
  const at = point(reference), element = resolve(reference), from = resolve(dragged);
  if (element === from || element.parentElement !== from.parentElement || !element.matches(".ui-sortable > *")) return at;
  const a = from.getBoundingClientRect(), b = element.getBoundingClientRect();
  const across = Math.sign(Math.round(b.top - a.top)), middle = b.left + b.width / 2;
  // The direction of the last movement decides on which side it goes in: along the row first, then across.
  if (across) return { x: middle, y: b.top + b.height * (0.5 + 0.3 * across), via: { x: middle, y: a.top + a.height / 2 } };
  return { x: b.left + b.width * (0.5 + 0.3 * Math.sign(b.left - a.left)), y: at.y };
};
const focus = (reference) => {
  const element = resolve(reference);
  if (!element.matches("input, textarea, [contenteditable=true]")) throw new Refused(`${spoken(reference)} is not a text field.`);
  if (element.disabled || element.readOnly) throw new Refused(`${spoken(reference)} cannot be changed.`);
  if (element.matches("input") && !TEXT_FIELDS.has(element.type)) throw new Refused(`${spoken(reference)} is not a text field.`);
  element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
  element.focus();
  return element;
};
// Where a text begins and ends, whatever white space and elements lie in between.
const findText = (wanted) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), letters = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest(OUTSIDE) || !visible(node.parentElement)) continue;
    for (let i = 0; i < node.data.length; i++) if (/\S/.test(node.data[i])) letters.push([node, i]);
  }
  const bare = wanted.replace(/\s/g, "");
  const at = letters.map(([node, i]) => node.data[i]).join("").indexOf(bare);
  if (at < 0) return null;
  const [first, last] = [letters[at], letters[at + bare.length - 1]];
  return [first[0], first[1], last[0], last[1] + 1];
};
const changed = (element) => {
  for (const type of ["input", "change"]) element.dispatchEvent(new Event(type, { bubbles: true }));
};
const acts = {
  alive: () => ({}),
  wait: () => { now += 1000 - LEAST_MS; return {}; },
  selection: () => {
    const field = document.activeElement;
    if (field && field.matches("input, textarea") && typeof field.selectionStart === "number")
      return { text: field.value.slice(field.selectionStart, field.selectionEnd) };
    return { text: getSelection().toString() };
  },
  point: ({ element }) => point(element),
  drag: ({ element: reference, target }) => {
    point(reference);
    drop(target, reference); // now both are in sight, if they can be
    const begin = point(reference), before = resolve(reference).getBoundingClientRect();
    const end = drop(target, reference), after = resolve(reference).getBoundingClientRect();
    if (before.top !== after.top || before.left !== after.left)
      throw new Refused(`${spoken(reference)} and ${spoken(target)} are too far apart.`);
    return { begin, end };
  },
  // Selects what is there, so that typing replaces it. Fields with a picker take their value at once.
  fill: ({ element: reference, text }) => {
    const element = focus(reference);
    if (element.matches("[type=date], [type=time], [type=month], [type=week], [type=color], [type=range], [type=datetime-local]")) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(element, text);
      changed(element);
      if (element.value !== text) throw new Refused(`${spoken(reference)} does not take ${JSON.stringify(text)}; it is of type ${element.type}.`);
      return { typed: true };
    }
    if (element.select) element.select();
    else getSelection().selectAllChildren(element);
    return { typed: false };
  },
  select_option: ({ element: reference, option: options }) => {
    const element = resolve(reference);
    if (element.tagName !== "SELECT") throw new Refused(`${spoken(reference)} is not a list to select from.`);
    const chosen = options.map((wanted) => {
      const all = [...element.options];
      const option = all.find((o) => squeeze(o.text) === squeeze(wanted)) || all.find((o) => o.value === wanted);
      if (!option) throw new Refused(`${spoken(reference)} has no option ${JSON.stringify(wanted)}.`);
      return option;
    });
    if (chosen.length > 1 && !element.multiple) throw new Refused(`${spoken(reference)} takes one option.`);
    for (const option of element.options) option.selected = chosen.includes(option);
    changed(element);
    return {};
  },
  select_text: ({ text }) => {
    const wanted = squeeze(text), field = [...document.querySelectorAll("#area textarea, #area input")].find((e) => visible(e) && e.value.includes(text));
    const found = wanted && findText(wanted);
    if (!found && !(field && text)) throw new Refused(`The text ${JSON.stringify(text)} is not on the page.`);
    if (found) getSelection().setBaseAndExtent(...found);
    else { field.focus(); field.setSelectionRange(field.value.indexOf(text), field.value.indexOf(text) + text.length); }
    return {};
  },
  scroll: ({ element: reference, direction }) => {
    let element = reference === null ? document.scrollingElement : resolve(reference);
    while (element && element !== document.scrollingElement && element.scrollHeight <= element.clientHeight + 1)
      element = element.parentElement;
    element = element || document.scrollingElement;
    const before = element.scrollTop;
    const some = Math.max(20, element.clientHeight * 0.8), far = element.scrollHeight;
    element.scrollTop += { up: -some, down: some, top: -far, bottom: far }[direction];
    return { moved: element.scrollTop !== before };
  },
};

const clear = () => {
  timers.clear();
  now = BEGINNING;
  elements = [];
  numbers = new WeakMap();
  [under, entered] = [null, []];
  document.activeElement?.blur();
  for (const element of document.querySelectorAll("*")) if (element.scrollTop) element.scrollTop = 0;
};

window.bough = {
  // What an agent types is text, also where the page's own function puts it into its HTML.
  escape: (name) => {
    const own = window[name];
    window[name] = (text) => own(String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"));
    return {};
  },
  // Also starts the next problem in a page that has been played: nothing of the last one is left but what the
  // page itself carries on.
  start: async (seed, mode, step) => {
    if (started) clear();
    started = true;
    acting = false;
    stepMs = step;
    mouse = { x: innerWidth - 1, y: innerHeight - 1, buttons: 0 };
    Math.seedrandom(seed);
    core.setDataMode(mode);
    core.EPISODE_MAX_TIME = 2 ** 31 - 1; // one more overflows, and the episode ends at once
    core.startEpisodeReal();
    await settle();
    return observe();
  },
  // What has just been scrolled is under the mouse only from the next frame on.
  hovering: async (reference) => {
    const element = resolve(reference);
    for (let tries = 0; tries < 100 && !element.matches(":hover"); tries++) await new Promise((r) => realSetTimeout(r, 5));
    await pictures();
    return {};
  },
  after: async () => {
    acting = false;
    await settle();
    return observe();
  },
  act: (name, given) => {
    if (!started || WOB_DONE_GLOBAL) return { over: true };
    acting = true;
    try { return { done: acts[name](given) ?? {} }; }
    catch (error) { if (error instanceof Refused) return { refused: error.message }; throw error; }
  },
};
