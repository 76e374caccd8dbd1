// Tables that stay readable on a phone: every cell carries its column's name, and a narrow screen shows rows as cards.
import { h } from "./dom.js";

// columns: { label, num, head }, `head` being the heading's content if it is not the label. rows: { cells, ...attributes }.
export function table(caption, columns, rows) {
  // The roles are spelled out because screen readers do not take a row that is laid out as a card for a row.
  return h("table", { class: "list", role: "table" },
    h("caption", { class: "hidden" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(({ label, num, head, sort }) => h("th", {
      scope: "col", role: "columnheader", class: `${num ? "num" : ""} ${head ? "sortable" : ""}`, "aria-sort": sort,
    }, head ?? label)))),
    h("tbody", { role: "rowgroup" }, rows.map(({ cells, ...attributes }) => h("tr", { role: "row", ...attributes },
      columns.map(({ label, num, first, wide }, i) => h(first ? "th" : "td", {
        scope: first ? "row" : null, role: first ? "rowheader" : "cell", class: [num ? "num" : "", wide ? "wide" : "", first ? "first" : ""].join(" ").trim() || null, "data-label": label || null,
      }, h("div", { class: "cell" }, cells[i])))))),
  );
}
