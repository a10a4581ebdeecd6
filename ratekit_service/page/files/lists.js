// Lists that come in pages, as tables.

import { element } from "./elements.js";

export function panel(title, ...children) {
  return element("section", { className: "panel" }, element("h3", {}, title), ...children);
}

const classOf = (column) => (column === "Id" ? "id" : ""); // ids have no room on a phone

export class List {
  // cells: the texts or elements of an item; read: asks for a path, undefined if that fails.
  constructor(title, columns, cells, read) {
    Object.assign(this, { cells, read, classes: columns.map(classOf) });
    this.rows = element("tbody");
    this.note = element("p", { className: "hint" });
    this.more = element("button", { type: "button", hidden: true }, `More of ${title.toLowerCase()}`);
    const head = element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col", className: classOf(name) }, name))));
    const table = element("table", { ariaLabel: title }, head, this.rows);
    const scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Table of ${title.toLowerCase()}` }, table);
    this.root = element("div", {}, scroll, this.note, this.more);
  }

  async load(path) {
    const turn = (this.turn = {});
    const page = await this.read(path);
    if (page === undefined || this.turn !== turn) return; // a later one was asked for meanwhile
    this.show(page.items.map(this.cells));
    this.follow(path, page.next);
  }

  show(rows, note = "") {
    this.rows.replaceChildren();
    this.append(rows);
    this.note.textContent = note || (rows.length ? "" : "None.");
  }

  append(rows) {
    this.rows.append(...rows.map((cells) => element("tr", {}, ...cells.map((cell, place) => element("td", { className: this.classes[place] }, cell)))));
  }

  follow(path, next) {
    this.more.hidden = next === null;
    this.more.onclick = async () => {
      const page = await this.read(`${path}&after=${encodeURIComponent(next)}`);
      if (page === undefined) return;
      this.append(page.items.map(this.cells));
      this.follow(path, page.next);
    };
  }
}
