// Two renderers with the same methods: one draws on a canvas, one builds SVG. Every view draws with either.

const FAMILY = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
const measuring = document.createElement("canvas").getContext("2d");
const font = ({ size = 13, weight = 400 }) => `${weight} ${size}px ${FAMILY}`;

export function textWidth(text, style = {}) {
  measuring.font = font(style);
  return measuring.measureText(text).width;
}

// Shorten text to a width, with an ellipsis.
export function fitText(text, width, style = {}) {
  if (textWidth(text, style) <= width) return text;
  const letters = [...text.slice(0, 200)];
  while (letters.length > 1 && textWidth(letters.join("") + "…", style) > width) letters.length = Math.floor(letters.length * 0.85);
  return letters.join("") + "…";
}

export function canvasRenderer(context) {
  return {
    rect(x, y, width, height, { fill, stroke, alpha = 1, radius = 0, lineWidth = 1 }) {
      context.globalAlpha = alpha;
      context.beginPath();
      if (radius) context.roundRect(x, y, width, height, radius);
      else context.rect(x, y, width, height);
      if (fill) (context.fillStyle = fill), context.fill();
      if (stroke) (context.strokeStyle = stroke), (context.lineWidth = lineWidth), context.stroke();
      context.globalAlpha = 1;
    },
    // Lines of one style: [x1, y1, x2, y2, x1, …]. `curve` is the axis along which curved lines start and end. One stroke
    // per line is twice as fast as one path of all lines.
    lines(ends, { color, alpha = 1, lineWidth = 1, curve = "" }) {
      context.globalAlpha = alpha;
      context.strokeStyle = color;
      context.lineWidth = lineWidth;
      for (let i = 0; i < ends.length; i += 4) {
        const [x1, y1, x2, y2] = [ends[i], ends[i + 1], ends[i + 2], ends[i + 3]];
        context.beginPath();
        context.moveTo(x1, y1);
        if (curve === "x") context.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
        else if (curve === "y") context.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
        else context.lineTo(x2, y2);
        context.stroke();
      }
      context.globalAlpha = 1;
    },
    text(text, x, y, style = {}) {
      const { color, align = "left", alpha = 1, rotate = 0 } = style;
      context.globalAlpha = alpha;
      context.font = font(style);
      context.fillStyle = color;
      context.textAlign = align;
      context.textBaseline = "middle";
      if (rotate) {
        context.save();
        context.translate(x, y);
        context.rotate((rotate * Math.PI) / 180);
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

export function svgRenderer(width, height) {
  const namespace = "http://www.w3.org/2000/svg";
  const root = document.createElementNS(namespace, "svg");
  const round = (value) => (typeof value === "number" ? Math.round(value * 100) / 100 : value);
  const add = (name, attributes, node = root.appendChild(document.createElementNS(namespace, name))) => {
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== null) node.setAttribute(key, round(value));
    }
    return node;
  };
  add("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FAMILY }, root);
  return {
    rect(x, y, w, h, { fill, stroke, alpha = 1, radius = 0, lineWidth = 1 }) {
      add("rect", { x, y, width: w, height: h, rx: radius || null, fill: fill ?? "none", stroke,
        "stroke-width": stroke && lineWidth, opacity: alpha === 1 ? null : alpha });
    },
    lines(ends, { color, alpha = 1, lineWidth = 1, curve = "" }) {
      let d = "";
      for (let i = 0; i < ends.length; i += 4) {
        const [x1, y1, x2, y2] = Array.from(ends.slice(i, i + 4), round);
        const [x, y] = [round((x1 + x2) / 2), round((y1 + y2) / 2)];
        const command = { x: `C${x} ${y1} ${x} ${y2} `, y: `C${x1} ${y} ${x2} ${y} ` }[curve] ?? "L";
        d += `M${x1} ${y1}${command}${x2} ${y2}`;
      }
      if (d) add("path", { d, fill: "none", stroke: color, "stroke-opacity": alpha, "stroke-width": lineWidth });
    },
    text(text, x, y, { color, align = "left", alpha = 1, rotate = 0, size = 13, weight = 400 } = {}) {
      add("text", { x, y, fill: color, "font-size": size, "font-weight": weight, opacity: alpha === 1 ? null : alpha,
        "text-anchor": { left: "start", center: "middle", right: "end" }[align], "dominant-baseline": "central",
        transform: rotate ? `rotate(${rotate} ${round(x)} ${round(y)})` : null }).textContent = text;
    },
    image(source, x, y, w, h, { alpha = 1, smooth = false } = {}) {
      const href = source instanceof HTMLCanvasElement ? source.toDataURL() : source.src;
      add("image", { href, x, y, width: w, height: h, preserveAspectRatio: "none", opacity: alpha === 1 ? null : alpha,
        "image-rendering": smooth ? null : "pixelated" });
    },
    toString: () => new XMLSerializer().serializeToString(root),
  };
}
