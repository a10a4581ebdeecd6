// Elements from plain values. Texts are never read as HTML.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function field(label, name, properties = {}) {
  return element("label", {}, `${label} `, element("input", { name, autocomplete: "off", ...properties }));
}

// A field to find things by a part of their name. It is shown where there are more of them than fit.
export function finder(label, find) {
  const made = field(label, "", { type: "search", maxLength: 256 });
  let waiting;
  made.lastElementChild.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(find, 250);
  });
  made.hidden = true;
  return made;
}

// What the service is asked for by a finder, and whether that is needed.
export const contains = (made) => (made.lastElementChild.value.trim() ? `&contains=${encodeURIComponent(made.lastElementChild.value.trim())}` : "");
export function showFinder(made, isNeeded) {
  made.hidden = !isNeeded && !made.lastElementChild.value;
}

export function choice(label, name, options) {
  return element("label", {}, `${label} `, element("select", { name }, ...options.map(([value, text]) => new Option(text, value))));
}
