// Two pens with the same strokes: one draws on a canvas, the other writes SVG. Every view is drawn by either.

const FAMILY = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
const ruler = document.createElement("canvas").getContext("2d");
const font = ({ size = 13, weight = 400 }) => `${weight} ${size}px ${FAMILY}`;

export function widthOf(text, style = {}) {
  ruler.font = font(style);
  return ruler.measureText(text).width;
}

// Cut to fit, with an ellipsis.
export function fit(text, room, style = {}) {
  if (widthOf(text, style) <= room) return text;
  const letters = [...text.slice(0, 200)];
  while (letters.length > 1 && widthOf(letters.join("") + "…", style) > room) letters.length = Math.floor(letters.length * 0.85);
  return letters.join("") + "…";
}

export function canvasPen(context) {
  return {
    rect(x, y, width, height, { fill, stroke, alpha = 1, radius = 0, thick = 1 }) {
      context.globalAlpha = alpha;
      context.beginPath();
      if (radius) context.roundRect(x, y, width, height, radius);
      else context.rect(x, y, width, height);
      if (fill) (context.fillStyle = fill), context.fill();
      if (stroke) (context.strokeStyle = stroke), (context.lineWidth = thick), context.stroke();
      context.globalAlpha = 1;
    },
    // Many lines of one look: [x1, y1, x2, y2, x1, …]; bent ones leave and arrive along `bend`. Each is a stroke of its
    // own: one stroke of them all takes twice as long.
    lines(ends, { color, alpha = 1, thick = 1, bend = "" }) {
      context.globalAlpha = alpha;
      context.strokeStyle = color;
      context.lineWidth = thick;
      for (let i = 0; i < ends.length; i += 4) {
        const [x1, y1, x2, y2] = [ends[i], ends[i + 1], ends[i + 2], ends[i + 3]];
        context.beginPath();
        context.moveTo(x1, y1);
        if (bend === "x") context.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
        else if (bend === "y") context.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
        else context.lineTo(x2, y2);
        context.stroke();
      }
      context.globalAlpha = 1;
    },
    text(text, x, y, style = {}) {
      const { color, align = "left", alpha = 1, turn = 0 } = style;
      context.globalAlpha = alpha;
      context.font = font(style);
      context.fillStyle = color;
      context.textAlign = align;
      context.textBaseline = "middle";
      if (turn) {
        context.save();
        context.translate(x, y);
        context.rotate((turn * Math.PI) / 180);
        context.fillText(text, 0, 0);
        context.restore();
      } else context.fillText(text, x, y);
      context.globalAlpha = 1;
    },
    image(source, x, y, width, height, { alpha = 1, smooth = false } = {}) {
      context.globalAlpha = alpha;
      context.imageSmoothingEnabled = smooth;
      context.imageSmoothingQuality = "high";
      context.drawImage(source, x, y, width, height);
      context.globalAlpha = 1;
    },
  };
}

export function svgPen(width, height) {
  const space = "http://www.w3.org/2000/svg";
  const root = document.createElementNS(space, "svg");
  const round = (value) => (typeof value === "number" ? Math.round(value * 100) / 100 : value);
  const add = (name, attributes, node = root.appendChild(document.createElementNS(space, name))) => {
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== null) node.setAttribute(key, round(value));
    }
    return node;
  };
  add("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FAMILY }, root);
  return {
    rect(x, y, w, h, { fill, stroke, alpha = 1, radius = 0, thick = 1 }) {
      add("rect", { x, y, width: w, height: h, rx: radius || null, fill: fill ?? "none", stroke,
        "stroke-width": stroke && thick, opacity: alpha === 1 ? null : alpha });
    },
    lines(ends, { color, alpha = 1, thick = 1, bend = "" }) {
      let d = "";
      for (let i = 0; i < ends.length; i += 4) {
        const [x1, y1, x2, y2] = Array.from(ends.slice(i, i + 4), round);
        const [x, y] = [round((x1 + x2) / 2), round((y1 + y2) / 2)];
        const by = { x: `C${x} ${y1} ${x} ${y2} `, y: `C${x1} ${y} ${x2} ${y} ` }[bend] ?? "L";
        d += `M${x1} ${y1}${by}${x2} ${y2}`;
      }
      if (d) add("path", { d, fill: "none", stroke: color, "stroke-opacity": alpha, "stroke-width": thick });
    },
    text(text, x, y, { color, align = "left", alpha = 1, turn = 0, size = 13, weight = 400 } = {}) {
      add("text", { x, y, fill: color, "font-size": size, "font-weight": weight, opacity: alpha === 1 ? null : alpha,
        "text-anchor": { left: "start", center: "middle", right: "end" }[align], "dominant-baseline": "central",
        transform: turn ? `rotate(${turn} ${round(x)} ${round(y)})` : null }).textContent = text;
    },
    image(source, x, y, w, h, { alpha = 1, smooth = false } = {}) {
      const href = source instanceof HTMLCanvasElement ? source.toDataURL() : source.src;
      add("image", { href, x, y, width: w, height: h, preserveAspectRatio: "none", opacity: alpha === 1 ? null : alpha,
        "image-rendering": smooth ? null : "pixelated" });
    },
    source: () => new XMLSerializer().serializeToString(root),
  };
}
