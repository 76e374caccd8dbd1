// Numbers and names as people read them.

const whole = new Intl.NumberFormat("en");

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function plural(value, word) {
  return `${count(value)} ${value === 1 ? word : word.endsWith("y") ? `${word.slice(0, -1)}ies` : `${word}s`}`;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole.format(value).replace("-", "−");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e+", "e").replace("-", "−");
  return String(+value.toPrecision(size >= 100 ? 4 : 3)).replace("-", "−");
}

export function signed(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !seconds) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function probability(p) {
  return p < 0.0001 ? "p < 0.0001" : `p = ${p.toPrecision(2)}`;
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

// How an episode ended. "done" on file only means that the environment ended it, which it also does after a mistake.
export function ending(stop, success) {
  if (stop !== "done") return words(stop ?? "");
  return success === true ? "solved" : success === false ? "ended unsolved" : "ended by the environment";
}

// A model or an adapter by the name that tells it from others: weights are in folders called "final".
export function agentName(agent) {
  return String(agent ?? "").split(", ").map((one) => {
    const path = one.split("/").filter(Boolean);
    while (path.length > 1 && ["final", "best"].includes(path.at(-1))) path.pop();
    return path.at(-1) ?? "";
  }).join(", ");
}

// A stage's folder: its last part, with the run's name where there is one.
export function stageName(folder) {
  return folder === "." ? "this folder" : String(folder ?? "").split("/").slice(-2).join("/");
}

export function shorten(text, length) {
  const plain = String(text ?? "");
  return plain.length <= length ? plain : `${plain.slice(0, length - 1)}…`;
}
