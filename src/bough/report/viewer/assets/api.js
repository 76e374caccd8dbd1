// Gets answers from the server, or from the data inside an exported page.
import { offlineRecords } from "./offline.js";

const carried = document.getElementById("bough-data");
const data = carried ? JSON.parse(carried.textContent) : null;

const pending = new Map();

export const exported = data !== null;

export function key(name, words) {
  const kept = Object.entries(words ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  kept.sort(([a], [b]) => (a < b ? -1 : 1));
  const query = kept.map(([k, value]) => `${k}=${encodeURIComponent(value)}`).join("&");
  return query ? `${name}?${query}` : name;
}

export async function ask(name, words) {
  if (data) {
    if (name === "records") return offlineRecords(data, words ?? {});
    const found = data.answers[key(name, words)];
    if (!found) throw new Error("this is not in the exported page; open the folder with bough view");
    return found;
  }
  // Two parts of a page that need the same answer at the same time share one request.
  const asked = key(name, words);
  if (!pending.has(asked)) pending.set(asked, read(asked).finally(() => pending.delete(asked)));
  return pending.get(asked);
}

async function read(asked) {
  const response = await fetch(`/api/${asked}`);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

export function imageSource(words) {
  return data ? data.images[key("image", words)] ?? "" : `/api/${key("image", words)}`;
}
