// The page's clock. It stands still while the agent thinks and runs as fast as it can after an action, so that an
// episode does not depend on how fast anybody is: animations and delays are over when the page is read.
//
// clock.js, reading.js and acting.js are put into one function and run before a page's own scripts.
const RealDate = Date, realSetTimeout = window.setTimeout.bind(window);
const LEAST_MS = 100, MOST_MS = 1000, FRAME_MS = 16, TICK_MS = 50;
const BEGINNING = RealDate.UTC(2024, 0, 15, 12);
let now = BEGINNING, lastTimer = 0;
const timers = new Map();

const schedule = (run, delay, every) => {
  const due = now + Math.max(every === null ? 0 : 1, Number(delay) || 0);
  timers.set(++lastTimer, { id: lastTimer, run, due, every });
  return lastTimer;
};
const callback = (f, args) => () => (typeof f === "function" ? f.apply(window, args) : (0, eval)(String(f)));
window.setTimeout = (f, delay, ...args) => schedule(callback(f, args), delay, null);
window.setInterval = (f, delay, ...args) =>
  schedule(callback(f, args), delay, Math.max(1, Number(delay) || 0));
window.requestAnimationFrame = (f) => schedule(() => f(performance.now()), FRAME_MS, null);
window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = (id) => void timers.delete(id);
performance.now = () => now - BEGINNING;
window.Date = class extends RealDate {
  constructor(...args) { if (args.length) super(...args); else super(now); }
  static now() { return now; }
};
window.alert = window.print = () => undefined;
window.confirm = () => true;
window.prompt = () => null;

// Runs what is due until nothing but ticking is left (an interval shorter than TICK_MS is an animation),
// at least LEAST_MS and at most MOST_MS. On pages that never come to rest it is `stepMs`, no more and no less.
let stepMs = null;
const settle = async () => {
  const least = now + (stepMs ?? LEAST_MS), most = now + (stepMs ?? MOST_MS);
  for (;;) {
    const pending = [...timers.values()].filter((t) => t.due <= most);
    if (!pending.length) break;
    const next = pending.reduce((a, b) => (b.due < a.due ? b : a));
    if (next.due > least && pending.every((t) => t.every >= TICK_MS)) break;
    now = Math.max(now, next.due);
    if (next.every === null) timers.delete(next.id); else next.due = now + next.every;
    try { next.run(); } catch (error) { console.error(error); }
    await null;
    track();
  }
  now = Math.max(now, least);
  for (const animation of document.getAnimations()) try { animation.finish(); } catch { /* it never ends */ }
  track();
  await pictures();
};
// Pictures, and icons drawn with content:url(), have no size until they are loaded.
const pictures = async () => {
  for (let tries = 0; tries < 600 && ([...document.images].some((image) => !image.complete) || iconsAreMissing()); tries++)
    await new Promise((r) => realSetTimeout(r, 5));
};
const isIcon = (element) => !element.childNodes.length && getComputedStyle(element).content.startsWith("url(");
const iconsAreMissing = () =>
  document.styleSheets.length > 0 &&
  [...document.querySelectorAll("#area *")].some((element) => {
    if (!isIcon(element)) return false;
    const box = element.getBoundingClientRect();
    return (box.width === 0 || box.height === 0) && element.offsetParent !== null;
  });
