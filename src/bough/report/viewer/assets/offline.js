// Filters, searches, sorts and counts records in an exported page, as the server does for a served one.

const EXACT = ["type", "stop", "reason", "agent", "task", "environment", "file", "stage"];
const OUTCOME = { success: true, failure: false, unknown: null };

function matches(row, asked, text) {
  if (EXACT.some((name) => asked[name] && row[name] !== asked[name])) return false;
  if (Object.hasOwn(OUTCOME, asked.outcome ?? "") && row.success !== OUTCOME[asked.outcome]) return false;
  const bounded = [["min_reward", "reward", 1], ["max_reward", "reward", -1], ["min_turns", "turns", 1], ["max_turns", "turns", -1]];
  for (const [bound, name, sign] of bounded) {
    if (asked[bound] && (row[name] === null || sign * (row[name] - Number(asked[bound])) < 0)) return false;
  }
  const wanted = (asked.q ?? "").toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];
  return wanted.every((word) => text(row).includes(word));
}

function facet(rows, name) {
  const counts = new Map();
  for (const row of rows) if (row[name] !== null) counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
  return [...counts].map(([value, n]) => ({ value, count: n })).sort((a, b) => b.count - a.count);
}

export function offlineRecords(data, asked) {
  const kind = asked.kind ?? "trajectory";
  const all = data.rows.filter((row) => row.kind === kind);
  const text = (row) => `${row.name} ${row.preview} ${data.texts[row.at] ?? ""}`.toLowerCase();
  const rows = all.filter((row) => matches(row, asked, text));
  if (asked.sort && asked.sort !== "place") {
    rows.sort((a, b) => (a[asked.sort] < b[asked.sort] ? -1 : a[asked.sort] > b[asked.sort] ? 1 : 0));
  }
  if (asked.order === "down") rows.reverse();
  const offset = Number(asked.offset ?? 0);
  const inFile = asked.file ? all.filter((row) => row.file === asked.file) : all;
  const facets = Object.fromEntries(["success", "type", "stop", "reason", "agent"].map((name) => [name, facet(inFile, name)]));
  facets.file = facet(all, "file");
  facets.stage = facet(all, "stage").sort((a, b) => (a.value < b.value ? -1 : 1));
  return { total: rows.length, offset, rows: rows.slice(offset, offset + Number(asked.limit ?? 100)), facets, busy: false };
}
