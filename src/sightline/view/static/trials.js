// A search report: trials are selected on the axes of parallel coordinates, and highlighted in all charts.
import { button, element } from "./elements.js";
import { clamp } from "./format.js";

const data = JSON.parse(document.getElementById("sightline-data").textContent);
const plot = document.querySelector("svg.parallel");
const details = document.body.appendChild(element("div", { className: "details", hidden: true }));
const marks = new Map();
for (const node of document.querySelectorAll("[data-trial]")) {
  const trial = Number(node.dataset.trial);
  marks.set(trial, [...(marks.get(trial) ?? []), node]);
}

const format = (value) => (value === null ? "none" : Number(value.toPrecision(4)).toString());

// Pointing at a trial highlights it in every chart and shows its settings.
let active = null;
function activate(trial) {
  if (trial === active) return;
  for (const node of marks.get(active) ?? []) node.classList.remove("active");
  for (const node of marks.get(trial) ?? []) node.classList.add("active");
  active = trial;
  details.hidden = trial === null;
  details.textContent = trial === null ? "" : data.trials[trial].text;
}
document.addEventListener("pointerover", ({ target }) => {
  const node = target.closest?.("[data-trial]");
  activate(node && !node.classList.contains("faded") ? Number(node.dataset.trial) : null);
});

if (plot) {
  const lines = [...plot.querySelectorAll("polyline[data-trial]")].map((line) => ({
    trial: Number(line.dataset.trial),
    levels: [...line.points].map((point) => point.y),
  }));
  const axes = [...plot.querySelectorAll(".axis")].map((node, index) => ({ node, index, range: null }));
  const status = element("span", { role: "status" });
  const clear = button({ onclick: () => axes.forEach((axis) => setRange(axis, null)), hidden: true }, "Clear selection");
  plot.parentNode.before(element("div", { className: "selection" }, status, clear));

  const isSelected = ({ levels }) =>
    axes.every(({ index, range }) => range === null || (levels[index] >= range[0] && levels[index] <= range[1]));

  function update() {
    const selected = lines.filter(isSelected).map(({ trial }) => trial);
    const isLimited = axes.some(({ range }) => range !== null);
    const kept = new Set(selected);
    for (const [trial, nodes] of marks) {
      for (const node of nodes) node.classList.toggle("faded", isLimited && !kept.has(trial));
    }
    clear.hidden = !isLimited;
    const values = selected.map((trial) => data.trials[trial].value).filter((value) => value !== null);
    const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
    const extreme = values.length ? (data.maximize ? Math.max(...values) : Math.min(...values)) : null;
    const numbers = `mean ${data.objective} ${format(mean)}, best ${format(extreme)}`;
    status.textContent = isLimited
      ? `${selected.length} of ${lines.length} trials: ${numbers}`
      : "Drag along an axis to select trials; with several axes, those in all selections.";
  }

  function setRange(axis, range) {
    axis.range = range;
    const brush = axis.node.querySelector(".brush");
    brush.setAttribute("y", range ? range[0] : 0);
    brush.setAttribute("height", range ? Math.max(1, range[1] - range[0]) : 0);
    update();
  }

  // The vertical position of a pointer event in the units of the drawing.
  function level(event) {
    const box = plot.getBoundingClientRect();
    return (event.clientY - box.top) * (plot.viewBox.baseVal.height / box.height);
  }

  for (const axis of axes) {
    const grab = axis.node.querySelector(".grab");
    const top = Number(grab.getAttribute("y"));
    const bottom = top + Number(grab.getAttribute("height"));
    let start = null;
    grab.addEventListener("pointerdown", (event) => {
      start = clamp(level(event), top, bottom);
      grab.setPointerCapture(event.pointerId);
      setRange(axis, null);
    });
    grab.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const end = clamp(level(event), top, bottom);
      if (Math.abs(end - start) > 3) setRange(axis, [Math.min(start, end), Math.max(start, end)]);
    });
    for (const name of ["pointerup", "pointercancel"]) grab.addEventListener(name, () => { start = null; });

    // Up and down move a selection of a quarter of the axis; Escape removes it.
    axis.node.addEventListener("keydown", (event) => {
      const size = (bottom - top) / 4;
      if (event.key === "Escape") setRange(axis, null);
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      const first = event.key === "ArrowUp" ? bottom - size : top;
      const moved = axis.range ? axis.range[0] + (event.key === "ArrowUp" ? -size / 2 : size / 2) : first;
      const low = clamp(moved, top, bottom - size);
      setRange(axis, [low, low + size]);
    });
  }
  update();
}
