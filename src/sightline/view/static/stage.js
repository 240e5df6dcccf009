// The stage: a scrolling window onto one drawing. Only the part inside the window is drawn, so its size does not matter.

import { clamp, el } from "./dom.js";
import { canvasPen } from "./pen.js";

const snapped = (reckoned, seen) => (Math.abs(reckoned - seen) < 2 ? seen : Math.round(reckoned));

export function openStage(app) {
  const canvas = el("canvas", { ariaHidden: "true" });
  const spacer = el("div", { className: "spacer" }, canvas);
  const scroller = el("div", { className: "scroller", tabIndex: 0, role: "application" }, spacer);
  const tip = el("div", { className: "tip", hidden: true });
  const node = el("div", { id: "stage", className: "stage", role: "tabpanel" }, scroller, tip);
  const context = canvas.getContext("2d");
  let view = null;
  let pointer = null; // where the pointer last was, until it leaves or a key is used
  let under = null; // the spot under it
  let moving = 0; // a timer, while the view is being scrolled
  const scrolled = new Map(); // how far each view was, for when it comes back
  let exact = {}; // the canvas in pixels of the screen, which at 150 % are not always what one would reckon

  const room = () => ({ width: scroller.clientWidth, height: scroller.clientHeight });
  function draw() {
    const { width, height } = room();
    if (!view || !width || !height) return;
    const size = view.size({ width, height });
    spacer.style.width = `${Math.max(width, size.width)}px`;
    spacer.style.height = `${Math.max(height, size.height)}px`;
    const sharp = window.devicePixelRatio || 1;
    const [wide, high] = [snapped(width * sharp, exact.inlineSize), snapped(height * sharp, exact.blockSize)];
    if (canvas.width !== wide || canvas.height !== high) {
      [canvas.width, canvas.height] = [wide, high];
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    follow();
    const { scrollLeft: x, scrollTop: y } = scroller;
    context.setTransform(wide / width, 0, 0, high / height, 0, 0);
    context.clearRect(0, 0, width, height);
    context.translate(-x, -y);
    view.draw(canvasPen(context), { x, y, width, height });
  }

  function spotAt({ clientX, clientY }) {
    const edge = scroller.getBoundingClientRect();
    const [left, top] = [clientX - edge.left, clientY - edge.top];
    if (!view || left < 0 || top < 0 || left > scroller.clientWidth || top > scroller.clientHeight) return null;
    return view.hit(left + scroller.scrollLeft, top + scroller.scrollTop, { x: scroller.scrollLeft, y: scroller.scrollTop });
  }

  function point(event) {
    pointer = event;
    const spot = pointer && spotAt(pointer);
    if (JSON.stringify(spot) !== JSON.stringify(under)) app.refresh();
    placeTip();
  }

  // What lies under the pointer may change while the pointer rests, so it is asked at every draw.
  function follow() {
    const spot = pointer && spotAt(pointer);
    if (spot || under) view.hover?.(spot);
    under = spot;
    scroller.style.cursor = spot && !spot.quiet ? "pointer" : "default";
    const lines = spot ? view.tip?.(spot) ?? [] : [];
    tip.hidden = lines.length === 0;
    tip.replaceChildren(...lines.map((line, i) => el("div", { className: i ? "tip-more" : "tip-head", textContent: line })));
    placeTip();
  }

  function placeTip() {
    if (!tip.hidden && pointer) {
      const edge = node.getBoundingClientRect();
      const [x, y] = [pointer.clientX - edge.left, pointer.clientY - edge.top];
      tip.style.left = `${x + 16 + tip.offsetWidth > edge.width ? Math.max(4, x - tip.offsetWidth - 12) : x + 16}px`;
      tip.style.top = `${y + 16 + tip.offsetHeight > edge.height ? Math.max(4, y - tip.offsetHeight - 12) : y + 16}px`;
    }
  }

  // What lies under the pointer stays there, else what is in the middle; what is picked stays in sight.
  function zoom(by, at) {
    if (!view.scale) return;
    const [edge, before] = [scroller.getBoundingClientRect(), view.scale()];
    const [x, y] = at ? [at.clientX - edge.left, at.clientY - edge.top] : [edge.width / 2, edge.height / 2];
    const [across, down] = [scroller.scrollLeft + x - before.x, scroller.scrollTop + y - before.y];
    app.set({ zoom: clamp(app.state.zoom * by, 0.25, 8) });
    draw();
    const after = view.scale();
    const ratio = after.unit / before.unit;
    scroller.scrollTo(after.x + across * ratio - x, after.y + down * ratio - y);
    if (!at) app.reveal();
  }

  const ZOOMS = { "+": 1.25, "=": 1.25, "-": 0.8, 0: 0 };
  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in STEPS) {
      pointer = null; // or what scrolls under it would take over
      view.move(...STEPS[event.key], event.shiftKey);
    } else if (event.key === "Enter" && view.enter) view.enter();
    else if (event.key in ZOOMS) zoom(ZOOMS[event.key] || 1 / app.state.zoom);
    else return;
    event.preventDefault();
  }

  scroller.addEventListener("scroll", () => {
    clearTimeout(moving);
    moving = setTimeout(() => { moving = 0; app.refresh(); }, 120);
    app.refresh();
  }, { passive: true });
  scroller.addEventListener("pointermove", point);
  scroller.addEventListener("pointerleave", () => point(null));
  scroller.addEventListener("click", (event) => { const spot = spotAt(event); if (spot) view.press?.(spot); });
  scroller.addEventListener("keydown", press);
  scroller.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1, event);
  }, { passive: false });
  new ResizeObserver(() => app.refresh()).observe(scroller);
  const sharpen = new ResizeObserver(([{ devicePixelContentBoxSize: [size] }]) => {
    exact = size;
    app.refresh();
  });
  if ("devicePixelContentBoxSize" in ResizeObserverEntry.prototype) sharpen.observe(canvas, { box: "device-pixel-content-box" });

  return {
    node, draw, room, zoom,
    isMoving: () => moving !== 0,
    // Whether it is seen for the first time.
    show(next) {
      if (next === view) return false;
      if (under) view.hover?.(null);
      scrolled.set(view, [scroller.scrollLeft, scroller.scrollTop]);
      pointer = under = null;
      view = next;
      draw();
      scroller.scrollTo(...(scrolled.get(view) ?? [0, 0]));
      scroller.setAttribute("aria-label", `${view.label} ${view.keys}`);
      return !scrolled.has(view);
    },
    // Scroll as little as needed for this part of the drawing to be in the window.
    reveal(x, y, width, height, margin = 40) {
      const edge = (from, size, now, seen) => {
        if (from - margin < now) return Math.max(0, from - margin);
        return Math.max(now, from + size + margin - seen);
      };
      draw();
      const { scrollLeft, scrollTop, clientWidth, clientHeight } = scroller;
      scroller.scrollTo(edge(x, width, scrollLeft, clientWidth), edge(y, height, scrollTop, clientHeight));
    },
  };
}
