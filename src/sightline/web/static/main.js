// The shell: tabs, the color theme, and loading the module of a tab when it is first shown.
import { isDark } from "../view/colors.js";

const MODULES = {
  "few-shot": () => import("./few-shot.js"),
  captions: () => import("./captions.js"),
  translate: () => import("./translate.js"),
  fill: () => import("./fill.js"),
  classify: () => import("./classify.js"),
  learn: () => import("./learn.js"),
};
const NAMES = Object.keys(MODULES);
const THEME = "sightline-theme";

const tab = (name) => document.getElementById(`tab-${name}`);
const panel = (name) => document.getElementById(`panel-${name}`);
const started = new Map(); // name -> promise of { show, hide }
let current = null;

// A tab module exports `start(panel)`. It may return { show, hide }, which are called when the tab is entered and left.
async function open(name, focus = false) {
  const previous = current;
  if (previous === name) return;
  current = name;
  for (const other of NAMES) {
    tab(other).setAttribute("aria-selected", String(other === name));
    tab(other).tabIndex = other === name ? 0 : -1;
    panel(other).hidden = other !== name;
  }
  document.title = `${tab(name).textContent} · Sightline`;
  if (focus) tab(name).focus();
  tab(name).scrollIntoView({ block: "nearest", inline: "center" });
  if (previous) (await started.get(previous))?.hide?.();
  if (!started.has(name)) started.set(name, MODULES[name]().then((module) => module.start(panel(name))));
  const part = await started.get(name);
  if (current === name) part?.show?.();
  panel(name).dataset.ready = "true";
}

// On a narrow window, the bar of tabs scrolls; marks at its edges say where there are more.
const bar = document.querySelector("[role=tablist]");
const EDGE = 4; // pixels that may remain at an edge
function markEdges() {
  bar.classList.toggle("more-before", bar.scrollLeft > EDGE);
  bar.classList.toggle("more-after", bar.scrollLeft < bar.scrollWidth - bar.clientWidth - EDGE);
}
const top_ = document.querySelector(".top");
new ResizeObserver(() => document.documentElement.style.setProperty("--top-height", `${top_.offsetHeight}px`)).observe(top_); // for what stays below it
bar.addEventListener("scroll", markEdges, { passive: true });
new ResizeObserver(markEdges).observe(bar);

const named = () => (NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : NAMES[0]);
for (const name of NAMES) tab(name).addEventListener("click", () => (location.hash = name));
bar.addEventListener("keydown", (event) => {
  const at = NAMES.indexOf(current);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: NAMES.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  location.hash = NAMES[(to + NAMES.length) % NAMES.length];
  tab(named()).focus();
});
addEventListener("hashchange", () => open(named()));

// The theme follows the system until it is chosen.
const toggle = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const mode = isDark(localStorage.getItem(THEME) ?? "auto") ? "dark" : "light";
  const other = mode === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = mode;
  toggle.textContent = other === "dark" ? "Dark" : "Light";
  toggle.ariaLabel = `Use ${other} colors`;
  dispatchEvent(new Event("themechange"));
}
toggle.addEventListener("click", () => {
  localStorage.setItem(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
});
system.addEventListener("change", applyTheme);
applyTheme();
open(named());
