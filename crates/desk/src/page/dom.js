"use strict";
// What is wanted is said anew for every state; what is there already is kept and changed where it
// differs, so that focus, selection and open folds outlive a refresh. Text is text: no markup is ever
// made of what the server says.

// h("td.num", {title: "…"}, "text", h(…)): what is wanted. `key` tells one from its neighbours.
function h(name, attrs, ...kids) {
  const [tag, ...classes] = name.split(".");
  const own = { ...attrs };
  if (classes.length) own.class = [...classes, own.class].filter(Boolean).join(" ");
  return { tag, key: own.key, attrs: own, kids: kids.flat(3).filter((it) => it !== null && it !== undefined && it !== false) };
}

const DRAWN = new Set(["svg", "g", "path", "rect", "line", "text", "title"]);
const made = new WeakMap(); // node: {name, attrs}

function create(want) {
  if (want.tag === undefined) return document.createTextNode(want);
  return DRAWN.has(want.tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", want.tag)
    : document.createElement(want.tag);
}

function fit(node, want) {
  if (want.tag === undefined) {
    if (node.data !== String(want)) node.data = String(want);
    return;
  }
  const before = made.get(node).attrs;
  for (const [name, value] of Object.entries(want.attrs)) {
    if (name === "key" || before[name] === value) continue;
    if (typeof value === "function") node[name] = value;
    else if (name === "open") node.open = value;
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const name of Object.keys(before)) {
    if (name in want.attrs) continue;
    if (typeof before[name] === "function") node[name] = null;
    else node.removeAttribute(name);
  }
  made.get(node).attrs = want.attrs;
  patch(node, want.kids);
}

// Makes the children of `parent` what is wanted.
function patch(parent, wanted) {
  const left = new Map();
  for (const node of parent.childNodes) left.set(made.get(node)?.name ?? node, node);
  const counts = {};
  let place = parent.firstChild;
  for (const want of wanted) {
    const tag = want.tag ?? "#";
    counts[tag] = (counts[tag] ?? 0) + 1;
    const name = tag + " " + (want.key ?? "nr " + counts[tag]);
    let node = left.get(name);
    left.delete(name);
    if (!node) {
      node = create(want);
      made.set(node, { name, attrs: {} });
    }
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    fit(node, want);
  }
  for (const node of left.values()) node.remove();
}

// The same for a whole part of the page; what had the focus keeps it, also where it moved to.
function draw(id, ...wanted) {
  patch($(id), wanted.flat(3).filter(Boolean));
}

function keepingFocus(change) {
  const focused = document.activeElement;
  change();
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

const $ = (id) => document.getElementById(id);
