// The viewport: a scrolling window onto the drawing of a view. Only the visible part is drawn, so its size does not matter.

import { element } from "./elements.js";
import { clamp } from "./format.js";
import { canvasRenderer } from "./renderer.js";

const snap = (computed, observed) => (Math.abs(computed - observed) < 2 ? observed : Math.round(computed));

export function createViewport(app) {
  const canvas = element("canvas", { ariaHidden: "true" });
  const spacer = element("div", { className: "spacer" }, canvas);
  const scroller = element("div", { className: "scroller", tabIndex: 0, role: "application" }, spacer);
  const tooltip = element("div", { className: "tooltip", hidden: true });
  const node = element("div", { id: "viewport", className: "viewport", role: "tabpanel" }, scroller, tooltip);
  const context = canvas.getContext("2d");
  let view = null;
  let pointer = null; // the last pointer event, until the pointer leaves or a key is pressed
  let target = null; // what is under the pointer
  let scrollTimer = 0; // nonzero while scrolling
  const scrollPositions = new Map(); // by view
  let deviceSize = {}; // of the canvas; at fractional zoom levels it differs from the computed one

  const room = () => ({ width: scroller.clientWidth, height: scroller.clientHeight });
  function draw() {
    const { width, height } = room();
    if (!view || !width || !height) return;
    const size = view.size({ width, height });
    spacer.style.width = `${Math.max(width, size.width)}px`;
    spacer.style.height = `${Math.max(height, size.height)}px`;
    const ratio = window.devicePixelRatio || 1;
    const [deviceWidth, deviceHeight] = [snap(width * ratio, deviceSize.inlineSize), snap(height * ratio, deviceSize.blockSize)];
    if (canvas.width !== deviceWidth || canvas.height !== deviceHeight) {
      [canvas.width, canvas.height] = [deviceWidth, deviceHeight];
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    updateTarget();
    const { scrollLeft: x, scrollTop: y } = scroller;
    context.setTransform(deviceWidth / width, 0, 0, deviceHeight / height, 0, 0);
    context.clearRect(0, 0, width, height);
    context.translate(-x, -y);
    view.draw(canvasRenderer(context), { x, y, width, height });
  }

  function targetAt({ clientX, clientY }) {
    const bounds = scroller.getBoundingClientRect();
    const [left, top] = [clientX - bounds.left, clientY - bounds.top];
    if (!view || left < 0 || top < 0 || left > scroller.clientWidth || top > scroller.clientHeight) return null;
    return view.hit(left + scroller.scrollLeft, top + scroller.scrollTop, { x: scroller.scrollLeft, y: scroller.scrollTop });
  }

  function onPointer(event) {
    pointer = event;
    const next = pointer && targetAt(pointer);
    if (JSON.stringify(next) !== JSON.stringify(target)) app.refresh();
    placeTooltip();
  }

  // The drawing may change under a resting pointer, so the target is updated on every draw.
  function updateTarget() {
    const next = pointer && targetAt(pointer);
    if (next || target) view.hover?.(next);
    target = next;
    scroller.style.cursor = target && !target.passive ? "pointer" : "default";
    const lines = target ? view.tooltip?.(target) ?? [] : [];
    tooltip.hidden = lines.length === 0;
    tooltip.replaceChildren(...lines.map((line, i) => element("div", { className: i ? "" : "tooltip-title", textContent: line })));
    placeTooltip();
  }

  function placeTooltip() {
    if (!tooltip.hidden && pointer) {
      const bounds = node.getBoundingClientRect();
      const [x, y] = [pointer.clientX - bounds.left, pointer.clientY - bounds.top];
      const { offsetWidth: width, offsetHeight: height } = tooltip;
      tooltip.style.left = `${x + 16 + width > bounds.width ? Math.max(4, x - width - 12) : x + 16}px`;
      tooltip.style.top = `${y + 16 + height > bounds.height ? Math.max(4, y - height - 12) : y + 16}px`;
    }
  }

  // Zoom around the pointer, or around the center; then the selection stays visible.
  function zoom(factor, event) {
    if (!view.scale) return;
    const [bounds, before] = [scroller.getBoundingClientRect(), view.scale()];
    const [x, y] = event ? [event.clientX - bounds.left, event.clientY - bounds.top] : [bounds.width / 2, bounds.height / 2];
    const [dx, dy] = [scroller.scrollLeft + x - before.x, scroller.scrollTop + y - before.y];
    app.set({ zoom: clamp(app.state.zoom * factor, 0.25, 8) });
    draw();
    const after = view.scale();
    const ratio = after.unit / before.unit;
    scroller.scrollTo(after.x + dx * ratio - x, after.y + dy * ratio - y);
    if (!event) app.revealSelection();
  }

  const ZOOM_KEYS = { "+": 1.25, "=": 1.25, "-": 0.8, 0: 0 };
  const ARROW_KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROW_KEYS) {
      pointer = null; // otherwise what scrolls under the pointer would be shown
      view.move(...ARROW_KEYS[event.key], event.shiftKey);
    } else if (event.key === "Enter" && view.enter) view.enter();
    else if (event.key in ZOOM_KEYS) zoom(ZOOM_KEYS[event.key] || 1 / app.state.zoom);
    else return;
    event.preventDefault();
  }

  scroller.addEventListener("scroll", () => {
    clearTimeout(scrollTimer);
    scrollTimer = setTimeout(() => { scrollTimer = 0; app.refresh(); }, 120);
    app.refresh();
  }, { passive: true });
  scroller.addEventListener("pointermove", onPointer);
  scroller.addEventListener("pointerleave", () => onPointer(null));
  scroller.addEventListener("click", (event) => { const clicked = targetAt(event); if (clicked) view.click?.(clicked); });
  scroller.addEventListener("keydown", onKey);
  scroller.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1, event);
  }, { passive: false });
  new ResizeObserver(() => app.refresh()).observe(scroller);
  const deviceSizeObserver = new ResizeObserver(([{ devicePixelContentBoxSize: [size] }]) => {
    deviceSize = size;
    app.refresh();
  });
  if ("devicePixelContentBoxSize" in ResizeObserverEntry.prototype) deviceSizeObserver.observe(canvas, { box: "device-pixel-content-box" });

  return {
    node, draw, room, zoom,
    isScrolling: () => scrollTimer !== 0,
    // Returns whether the view is shown for the first time.
    show(next) {
      if (next === view) return false;
      if (target) view.hover?.(null);
      scrollPositions.set(view, [scroller.scrollLeft, scroller.scrollTop]);
      pointer = target = null;
      view = next;
      draw();
      scroller.scrollTo(...(scrollPositions.get(view) ?? [0, 0]));
      scroller.setAttribute("aria-label", `${view.label} ${view.keys}`);
      return !scrollPositions.has(view);
    },
    // Scroll as little as possible to make this part of the drawing visible.
    reveal(x, y, width, height, margin = 40) {
      const scrollTo = (start, size, scroll, visible) => {
        if (start - margin < scroll) return Math.max(0, start - margin);
        return Math.max(scroll, start + size + margin - visible);
      };
      draw();
      const { scrollLeft, scrollTop, clientWidth, clientHeight } = scroller;
      scroller.scrollTo(scrollTo(x, width, scrollLeft, clientWidth), scrollTo(y, height, scrollTop, clientHeight));
    },
  };
}
