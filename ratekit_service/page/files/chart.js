// What remains over time, as a step line, with a mark for every answer. Drawn as SVG; colours are the style sheet's.

const NAMESPACE = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [36, 470, 12, 146];

function shape(name, attributes, text) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Chart {
  constructor(svg) {
    this.svg = svg;
    this.clear();
  }

  clear() {
    this.points = [];
    this.most = 1;
    this.seconds = 1;
    this.draw();
  }

  // kind: "passed", "stopped", or "looked" for what was only looked at.
  add(seconds, remaining, most, kind) {
    this.points.push({ seconds, remaining, kind });
    this.points.sort((one, other) => one.seconds - other.seconds);
    this.most = Math.max(this.most, most, remaining);
    this.seconds = Math.max(this.seconds, seconds);
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.draw();
    });
  }

  x(seconds) {
    return (LEFT + ((RIGHT - LEFT) * seconds) / this.seconds).toFixed(1);
  }

  y(remaining) {
    return (BOTTOM - ((BOTTOM - TOP) * remaining) / this.most).toFixed(1);
  }

  draw() {
    this.svg.replaceChildren(...this.axes(), this.line(), ...this.points.flatMap((point) => this.mark(point)));
  }

  axes() {
    return [
      shape("line", { class: "axis", x1: LEFT, y1: BOTTOM, x2: RIGHT, y2: BOTTOM }),
      shape("line", { class: "axis", x1: LEFT, y1: TOP, x2: LEFT, y2: BOTTOM }),
      shape("text", { x: LEFT - 6, y: TOP + 6, "text-anchor": "end" }, this.most),
      shape("text", { x: LEFT - 6, y: BOTTOM + 4, "text-anchor": "end" }, 0),
      shape("text", { x: LEFT, y: BOTTOM + 18 }, "0 s"),
      shape("text", { x: RIGHT, y: BOTTOM + 18, "text-anchor": "end" }, `${this.seconds.toFixed(1)} s`),
    ];
  }

  line() {
    const steps = this.points.map(({ seconds, remaining }, index) => (index ? `H${this.x(seconds)}V${this.y(remaining)}` : `M${this.x(seconds)} ${this.y(remaining)}`));
    return shape("path", { class: "line", d: steps.join("") });
  }

  mark({ seconds, remaining, kind }) {
    const [x, y] = [Number(this.x(seconds)), Number(this.y(remaining))];
    if (kind === "passed") return [shape("circle", { class: "passed", cx: x, cy: y, r: 3.5 })];
    if (kind === "stopped") return [shape("path", { class: "stopped", d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8` })];
    return [];
  }
}
