// The focus stays where it is while parts of the page are built again.

// Replace the rows of a list. If one of its controls has the focus, the same control of the same row gets it, or of the row
// that took its place; if no row is left, `fallback()` does. Rows are known by `dataset.id`.
export function replaceRows(list, rows, fallback = () => null) {
  const before = [...list.children];
  const at = before.findIndex((row) => row.contains(document.activeElement));
  const control = at < 0 ? 0 : controls(before[at]).indexOf(document.activeElement);
  list.replaceChildren(...rows);
  if (at < 0) return;
  const row = rows.find(({ dataset }) => dataset.id && dataset.id === before[at].dataset.id) ?? rows[Math.min(at, rows.length - 1)];
  const found = row && controls(row);
  (found?.[Math.min(control, found.length - 1)] ?? fallback())?.focus();
}
const controls = (row) => [...row.querySelectorAll("button, input, select, a[href]")];

// Enable or disable a button that may have the focus: a disabled button would lose it. Its handler must check `isEnabled`.
export const setEnabled = (node, enabled) => (enabled ? node.removeAttribute("aria-disabled") : node.setAttribute("aria-disabled", "true"));
export const isEnabled = (node) => node.getAttribute("aria-disabled") !== "true";
