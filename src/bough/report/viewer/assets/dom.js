// Elements from plain values. Text is always inserted as text: what a model wrote can never become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("links may only lead to pages of the viewer");
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function link(page, words, ...children) {
  return h("a", { href: address(page, words) }, ...children);
}

export function address(page, words) {
  const kept = Object.entries(words ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = kept.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  return `#/${page}${query ? `?${query}` : ""}`;
}
