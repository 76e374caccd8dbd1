// Axes: where the ticks go, and how their numbers are written.

const LARGEST = 1e300;

// A range that ends on ticks, and the ticks: about `wanted` of them, at round distances.
export function axis(low, high, wanted, smallest = 0) {
  // Beyond these a difference is infinite, or lost in rounding.
  [low, high] = [low, high].map((v) => Math.min(LARGEST, Math.max(-LARGEST, v)));
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= size * 1e-10 || high - low < 1 / LARGEST) [low, high] = [low - (size * 0.1 || 0.5), high + (size * 0.1 || 0.5)];
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(smallest, [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999 && !(smallest && s % smallest)) ?? raw);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const ticks = [];
  for (let i = first; i <= last && ticks.length < 40; i++) ticks.push(+(i * step).toPrecision(12));
  return { low: ticks[0], high: ticks.at(-1), ticks, step };
}

// All ticks of an axis in one notation, with as many digits as tell one from the next.
export function labels({ ticks, step }) {
  const largest = Math.max(...ticks.map(Math.abs));
  if (largest >= 1e4) {
    const [unit, sign] = largest >= 1e9 ? [1e9, "G"] : largest >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return ticks.map((v) => (v === 0 ? "0" : fixed(v / unit, step / unit) + sign));
  }
  if (largest < 1e-3) {
    const power = Math.floor(Math.log10(step) + 1e-9);
    return ticks.map((v) => (v === 0 ? "0" : `${fixed(v / 10 ** power, step / 10 ** power)}e−${-power}`));
  }
  return ticks.map((v) => fixed(v, step));
}

function fixed(value, step) {
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) digits++;
  return value.toFixed(digits).replace("-", "−");
}

// An exponential moving average whose start is not pulled towards zero; 0 leaves the points as they are.
export function smooth(points, weight) {
  let [sum, total] = [0, 0];
  return points.map(([step, value]) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return [step, sum / total];
  });
}

// A schedule is drawn as it is; only a curve that jumps up and down is smoothed.
export function noisy(points) {
  let turns = 0;
  for (let i = 2; i < points.length; i++) if ((points[i][1] - points[i - 1][1]) * (points[i - 1][1] - points[i - 2][1]) < 0) turns++;
  return turns > points.length / 8;
}
