// A member of a population in words.
import { number, percent, words } from "./format.js";
import { written } from "./settings.js";

export function mutationText(one) {
  const { kind, setting, before, after } = one.mutation ?? {};
  if (!kind) return "";
  if (setting) return `${words(setting)} ${written(before)} → ${written(after)}`;
  return kind === "no_mutation" ? "none" : words(kind);
}

export function fitnessText(score, found) {
  if (score.fitness === null) return "unknown";
  const text = found.rate ? (value) => percent(value) : number;
  return score.interval ? `${text(score.fitness)} (${text(score.interval[0])} – ${text(score.interval[1])})` : text(score.fitness);
}

// What fitness is: more is better, so a loss counts with the other sign.
export function metricName(found) {
  return found.metric === "loss" ? "negative loss" : words(found.metric);
}
