// Elements from plain values. Texts are never read as HTML.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function field(label, name, properties = {}) {
  return element("label", {}, `${label} `, element("input", { name, autocomplete: "off", ...properties }));
}

export function choice(label, name, options) {
  return element("label", {}, `${label} `, element("select", { name }, ...options.map(([value, text]) => new Option(text, value))));
}
