// What a page shows: its elements, numbered, with what can be said of each, and the text between them.
const POINTER = new Set(["click", "mousedown", "mouseup", "dblclick", "pointerdown", "pointerup", "mouseover"]);
const listening = new WeakSet();
const addEventListener = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
  if (POINTER.has(String(type).split(".")[0]) && this instanceof Element) listening.add(this);
  return addEventListener.call(this, type, ...rest);
};

// When a page changes under a mouse that does not move, Chromium makes up movements some milliseconds later.
// Whether they come before or after the page is read is chance. So only the movements of an action get through, and
// what the mouse enters and leaves is worked out here: when it moves, and whenever the page's clock has moved something.
let acting = false, mouse = { x: 0, y: 0, buttons: 0 }, under = null, entered = [];
const around = (element) => { const path = []; for (; element; element = element.parentElement) path.push(element); return path; };
const tell = (element, type, bubbles, relatedTarget) => {
  if (!element.isConnected) return;
  const event = { bubbles, cancelable: bubbles, composed: true, view: window, relatedTarget, buttons: mouse.buttons, clientX: mouse.x, clientY: mouse.y };
  element.dispatchEvent(new PointerEvent("pointer" + type, { ...event, pointerType: "mouse", isPrimary: true }));
  element.dispatchEvent(new MouseEvent("mouse" + type, event));
};
const track = () => {
  const hit = document.elementFromPoint(mouse.x, mouse.y), last = under;
  if (hit === last) return;
  const left = entered, path = around(hit);
  [under, entered] = [hit, path];
  if (last) tell(last, "out", true, hit);
  for (const element of left) if (!path.includes(element)) tell(element, "leave", false, hit);
  if (hit) tell(hit, "over", true, last);
  for (const element of [...path].reverse()) if (!left.includes(element)) tell(element, "enter", false, last);
};
for (const device of ["pointer", "mouse"]) {
  for (const name of ["over", "out", "enter", "leave"])
    addEventListener.call(window, device + name, (event) => { if (event.isTrusted) event.stopImmediatePropagation(); }, true);
  addEventListener.call(window, device + "move", (event) => {
    if (!event.isTrusted) return;
    if (!acting) return event.stopImmediatePropagation();
    mouse = { x: event.clientX, y: event.clientY, buttons: event.buttons };
    track();
  }, true);
}

const OUTSIDE = "#query, #reward-display, #sync-task-cover, #click-canvas, #attention-canvas, .ui-helper-hidden-accessible, script, style, noscript, template";
const STAGE = "html, body, #wrap, #area, form, table, tbody, svg, ul.ui-menu, #area > svg";
const NATIVE = "a, button, input:not([type=hidden]), select, textarea, summary, [contenteditable=true], [onclick], [draggable=true]";
const WIDGET = "[role=tab], [role=menuitem], [role=option], [role=slider], [role=spinbutton], [role=treeitem], .ui-draggable, .ui-sortable > *, .ui-resizable-handle, .ui-menu-item";
const MARKED = ".active, .selected";
const SHAPES = new Set(["circle", "rect", "ellipse", "polygon", "line", "path", "polyline", "image"]);
const TEXT_FIELDS = new Set(["text", "password", "search", "email", "tel", "url", "number", "date", "time", "month", "week", "color", "range", "datetime-local"]);

let numbers = new WeakMap(), elements = [];
const numberOf = (element) => {
  if (!numbers.has(element)) { elements.push(element); numbers.set(element, elements.length); }
  return numbers.get(element);
};
const squeeze = (text) => (text || "").replace(/\s+/g, " ").trim();
const visible = (element) => {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  if (style.visibility !== "visible" || style.display === "none" || Number(style.opacity) === 0) return false;
  return (box.width > 0 && box.height > 0) || (element instanceof SVGElement && box.width + box.height > 0);
};
const inPointerStyle = (element) =>
  getComputedStyle(element).cursor === "pointer" && getComputedStyle(element.parentElement).cursor !== "pointer";
const reacts = (element) => {
  if (element.matches(NATIVE)) return true;
  if (element.matches(STAGE) || element.matches("#ui-datepicker-div, .ui-dialog, .ui-dialog *:not(a):not(button)")) return false;
  if (element.matches(WIDGET)) return true;
  return listening.has(element) || typeof element.onclick === "function" || inPointerStyle(element);
};
// A box without words of its own around something to act on is a frame, and left out.
const interactive = (element) => {
  if (!reacts(element)) return false;
  if (element.matches(NATIVE) || words(element)) return true;
  return ![...element.querySelectorAll("*")].some((inner) => reacts(inner) && visible(inner));
};
const words = (element) =>
  [...element.childNodes].some((child) =>
    child instanceof Text ? child.data.trim() : child instanceof Element && !reacts(child) && !child.matches(OUTSIDE) && words(child));

const kindOf = (element) => {
  const tag = element.tagName.toLowerCase(), role = element.getAttribute("role");
  if (tag === "a") return "link";
  if (tag === "input") return element.type === "submit" ? "button" : element.type;
  if (tag === "textarea") return "textarea";
  if (role && element.matches(WIDGET)) return role;
  if (element instanceof SVGElement && tag === "text") return "letter";
  return tag;
};
// A name for what has no text: how its author calls it.
const called = (element) =>
  ["aria-label", "title", "alt", "data-original-title"].map((name) => element.getAttribute(name)).find(Boolean) || "";
const classes = (element) =>
  typeof element.className !== "string" ? "" :
  [...element.classList].filter((name) => !/^ui-(corner|state|widget|helper|button|icon$)/.test(name)).join(" ");
const shape = (element) => {
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  const paint = [element.getAttribute("fill") || style.fill, element.getAttribute("stroke") || style.stroke];
  const facts = {};
  if (element.tagName === "line") return Object.fromEntries(["x1", "y1", "x2", "y2"].map((name) => [name, element.getAttribute(name)]));
  if (paint[0] && paint[0] !== "none") facts.fill = paint[0];
  else if (paint[1] && paint[1] !== "none") facts.stroke = paint[1];
  const points = element.getAttribute("points");
  if (points) facts.sides = squeeze(points).split(/[\s,]+/).length / 2;
  if (element.tagName === "path" && !element.id) facts.d = element.getAttribute("d").slice(0, 60);
  Object.assign(facts, place(box));
  return facts;
};
const place = (box) => ({
  x: Math.round(box.left + box.width / 2), y: Math.round(box.top + box.height / 2),
  size: `${Math.round(box.width)}x${Math.round(box.height)}`,
});
const iconOf = (element) =>
  [...element.querySelectorAll(":scope > .ui-icon, :scope.ui-icon")].concat(element)
    .flatMap((e) => [...e.classList]).map((name) => /^ui-icon-(?!caret|carat|triangle|blank|grip|close)(.+)/.exec(name)?.[1]).find(Boolean);
const roomy = (element) => !element.matches(NATIVE) && element.getBoundingClientRect().width > 100;
const describe = (element, name) => {
  const kind = kindOf(element), entry = { number: numberOf(element), kind, name: squeeze(name), facts: {} };
  const facts = entry.facts;
  if (element.id && !/^ui-id-/.test(element.id)) facts.id = element.id;
  if (!entry.name) entry.name = called(element);
  const type = classes(element), paint = element.style && element.style.backgroundColor;
  if (!entry.name && type && !element.matches("input, select, textarea")) facts.class = type;
  else if (/selected|active|checked|done|completed/.test(type)) facts.class = type;
  else if (element.children.length === 1 && element.firstElementChild.matches(MARKED)) facts.class = classes(element.firstElementChild);
  if (paint && !entry.name && !element.matches("input, select, textarea")) facts.color = paint;
  if (element instanceof SVGElement) Object.assign(facts, shape(element));
  else if (element.matches(".ui-draggable, .ui-slider-handle, .ui-resizable-handle") || (!entry.name && roomy(element)))
    Object.assign(facts, place(element.getBoundingClientRect()));
  if (kind === "checkbox" || kind === "radio") facts.checked = element.checked;
  else if (element.matches("input, textarea") && !["button", "submit", "image"].includes(element.type)) {
    if (element.placeholder && !entry.name) entry.name = element.placeholder;
    facts.value = element.value;
  } else if (kind === "select") {
    facts.options = [...element.options].map((option) => squeeze(option.text));
    facts.value = [...element.selectedOptions].map((option) => squeeze(option.text)).join(", ");
    if (element.multiple) facts.multiple = true;
  }
  if (element.disabled || element.classList.contains("ui-state-disabled")) facts.disabled = true;
  if (element === document.activeElement) facts.focused = true;
  if (element.getAttribute("aria-expanded") === "true") facts.expanded = true;
  if (element.getAttribute("aria-haspopup") === "true") facts.submenu = true;
  if (element.closest("[role=tab]")?.getAttribute("aria-selected") === "true") facts.selected = true;
  const hidden = element.scrollHeight - element.clientHeight;
  if (hidden > 2 && element.matches("textarea")) facts.scrolled = `${Math.round((100 * element.scrollTop) / hidden)}%`;
  const icon = iconOf(element);
  if (icon) facts.icon = icon;
  entry.selector = selectorOf(element);
  return entry;
};

// Children are read in the order of the document; text between things to act on becomes a line of its own.
const read = () => {
  const lines = [];
  let text = [];
  const flush = () => {
    const line = squeeze(text.join(""));
    if (line) lines.push({ text: line });
    text = [];
  };
  const nameOf = (element) => {
    if (element.matches("input, select, textarea")) {
      if (element.matches("[type=button], [type=submit]")) return element.value;
      const labels = [...(element.labels || [])];
      return labels.map((label) => ownText(label)).join(" ");
    }
    return ownText(element);
  };
  const ownText = (element) => {
    let out = "";
    for (const child of element.childNodes) {
      if (child instanceof Text) out += child.data;
      else if (child instanceof Element && !child.matches(OUTSIDE) && !interactive(child) && visibleOrInline(child))
        out += (isBlock(child) ? " " : "") + ownText(child) + (isBlock(child) ? " " : "");
    }
    return out;
  };
  const visibleOrInline = (element) => element.tagName === "BR" || visible(element);
  const isBlock = (element) => element.tagName === "BR" || !/^inline/.test(getComputedStyle(element).display);
  const walk = (element) => {
    for (const child of element.childNodes) {
      if (child instanceof Text) text.push(child.data);
      else if (!(child instanceof Element) || child.matches(OUTSIDE)) continue;
      else if (child.tagName === "BR") flush();
      else if (child.tagName === "IMG" && child.alt && getComputedStyle(child).display !== "none") text.push(` (${child.alt})`);
      else if (getComputedStyle(child).display === "contents") walk(child);
      else if (!visible(child)) { if (getComputedStyle(child).display !== "none" && child.children.length) walkHidden(child); }
      else if (interactive(child)) {
        flush();
        lines.push(describe(child, nameOf(child)));
        walkInteractive(child);
      } else if (child.tagName === "LABEL" && labelFor(child)) walkInteractive(child);
      else if (SHAPES.has(child.tagName.toLowerCase())) { flush(); lines.push(describe(child, "")); }
      else if (child.tagName === "text") { flush(); lines.push(describe(child, child.textContent)); }
      else if (child.tagName === "CANVAS") { flush(); lines.push(describe(child, "")); }
      else if (child.tagName === "TR") {
        flush();
        if (child.querySelector("*") && [...child.querySelectorAll("*")].some((x) => visible(x) && interactive(x))) walk(child);
        else text.push([...child.children].map((cell) => squeeze(cell.innerText)).join(" | "));
        flush();
      } else {
        const block = isBlock(child);
        if (block) flush();
        if (bare(child)) { flush(); lines.push(describe(child, "")); }
        else if (marked(child)) { flush(); lines.push(describe(child, ownText(child))); }
        else walk(child);
        if (block) flush();
      }
    }
  };
  // A box without text that was given a colour or a class of its own is drawn for a reason.
  const bare = (element) =>
    !element.childNodes.length && !element.matches("hr, #area, label, .ui-dialog *") && element.getBoundingClientRect().width > 3 &&
    Boolean(classes(element) || element.id || element.style?.backgroundColor);
  // Of words among others of their kind, those that are the active ones.
  const marked = (element) => !element.children.length && element.matches(MARKED) && element.textContent.trim();
  const walkHidden = (element) => {
    for (const child of element.children) if (visible(child) && !child.matches(OUTSIDE)) {
      if (interactive(child)) { flush(); lines.push(describe(child, nameOf(child))); walkInteractive(child); }
      else walk(child);
    } else if (!child.matches(OUTSIDE) && getComputedStyle(child).display !== "none") walkHidden(child);
  };
  // The text is in the element's name already; what can be acted on inside it is not.
  const walkInteractive = (element) => {
    if (element.matches("select")) return;
    for (const child of element.children) {
      if (child.matches(OUTSIDE) || !visible(child)) continue;
      if (interactive(child)) { lines.push(describe(child, nameOf(child))); walkInteractive(child); }
      else walkInteractive(child);
    }
  };
  const labelFor = (label) => label.control && visible(label.control);
  walk(document.body);
  flush();
  return lines;
};

const unique = (selector) => { try { return document.querySelectorAll(selector).length === 1; } catch { return false; } };
const selectorOf = (element) => {
  const tag = element.tagName.toLowerCase(), own = (e) => e.id && /^[A-Za-z][\w-]*$/.test(e.id) && unique("#" + e.id);
  if (own(element)) return "#" + element.id;
  for (const name of ["name", "value", "data-index", "data-result", "href", "for"]) {
    const value = element.getAttribute(name);
    if (value && /^[\w -]+$/.test(value) && unique(`${tag}[${name}='${value}']`)) return `${tag}[${name}='${value}']`;
  }
  for (const type of element.classList) if (/^[A-Za-z][\w-]*$/.test(type) && unique(`${tag}.${type}`)) return `${tag}.${type}`;
  if (unique(tag)) return tag;
  let path = "", at = element;
  while (at && at !== document.body) {
    const same = at.parentElement ? [...at.parentElement.children].filter((x) => x.tagName === at.tagName) : [at];
    const step = at.tagName.toLowerCase() + (same.length > 1 ? `:nth-of-type(${same.indexOf(at) + 1})` : "");
    path = path ? `${step} > ${path}` : step;
    if (unique(path)) return path;
    at = at.parentElement;
    if (at && own(at) && unique(`#${at.id} > ${path}`)) return `#${at.id} > ${path}`;
  }
  return "body > " + path;
};

// The page's own words; a patch of colour among them is said as what it is.
const goal = () => {
  const own = core.getUtterance(), query = document.querySelector("#query");
  const told = squeeze(typeof own === "string" ? own : own.utterance);
  if (!query || told !== squeeze(query.textContent)) return told;
  const say = (node) =>
    node instanceof Text ? node.data :
    node instanceof Element && node.matches(".ui-icon") && iconOf(node) ? ` ${iconOf(node)} ` :
    node.childNodes.length ? [...node.childNodes].map(say).join("") :
    node.style?.backgroundColor ? ` ${node.style.backgroundColor} ` : node.tagName === "BR" ? " " : "";
  return squeeze(say(query));
};

let started = false;
const observe = () => {
  return {
    started,
    goal: started ? goal() : "",
    done: started && WOB_DONE_GLOBAL,
    reward: started ? WOB_RAW_REWARD_GLOBAL : 0,
    reason: started ? String(WOB_REWARD_REASON ?? "") : "",
    lines: started && !WOB_DONE_GLOBAL ? read() : [],
  };
};
