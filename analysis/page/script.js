// What the page can do with a script: without one it is the same page, without hover, sorting and filtering.
"use strict";
const runs = JSON.parse(document.getElementById("runs").textContent);  // id -> {arm, seed, href, settings}
const marks = new Map([...document.querySelectorAll("td > .mark")].map(mark => [mark.parentNode.textContent, mark]));  // of arms
const MANY = 24;  // arms whose buttons stand open above a figure
let chosen = [];  // ids of up to two runs

function element(tag, content = {}, parent = null) {
  const made = Object.assign(document.createElement(tag), content);
  if (parent) parent.append(made);
  return made;
}

// --- what is wider than the window says so, and fades at the right until it is scrolled to its end -------------------------

function fade(box) {
  box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}

const widths = new ResizeObserver(entries => entries.forEach(entry => fade(entry.target)));
for (const box of document.querySelectorAll(".scroll")) {
  box.onscroll = () => fade(box);
  widths.observe(box);
  fade(box);
}

// --- tables: sort by a column, filter by a word ---------------------------------------------------------------------------

function numeric(text) {
  const value = parseFloat(text.replace("−", "-"));
  return Number.isNaN(value) ? null : value;
}

function sortBy(table, column, head) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[column].textContent;
  const order = (a, b) => {
    const [x, y] = [numeric(key(a)), numeric(key(b))];
    if (x !== null && y !== null) return x - y;
    if (x !== null || y !== null) return x === null ? 1 : -1;  // words after numbers
    return key(a).localeCompare(key(b), undefined, { numeric: true });
  };
  const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? 1 : -1) * order(a, b));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = element("button", { textContent: head.textContent, type: "button" });
    head.replaceChildren(button);
    button.onclick = () => sortBy(table, column, head);
  });
  if (table.tBodies[0].rows.length < 4) continue;
  const filter = element("input", { className: "filter", type: "search", placeholder: "filter rows" });
  filter.setAttribute("aria-label", "filter rows");
  table.parentNode.before(filter);
  filter.oninput = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows)
      row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  };
  for (const row of table.tBodies[0].rows) {
    const own = Object.keys(runs).filter(id => runs[id].arm === row.cells[0].textContent);
    if (own.length) row.onclick = event => { if (event.target.tagName !== "A") choose(own); };
  }
}

// --- curves: hover names a point, a click chooses its run everywhere, the legend hides arms -------------------------------

// A panel is {box: [left, top, width, height] in SVG units, x: [least, most, log], y: the same}.
function place(panel, x, y) {
  const along = ([least, most, log], value) =>
    log ? (Math.log(value) - Math.log(least)) / (Math.log(most) - Math.log(least)) : (value - least) / (most - least);
  const [left, top, width, height] = panel.box;
  return [left + width * along(panel.x, x), top + height * (1 - along(panel.y, y))];
}

function nearest(figure, at) {
  let best = null, least = 20 ** 2;
  for (const curve of figure.curves.curves) {
    if (figure.node(curve).classList.contains("hidden")) continue;
    const panel = figure.curves.panels[curve.panel];
    curve.x.forEach((x, i) => {
      const [px, py] = place(panel, x, curve.y[i]);
      const distance = (px - at.x) ** 2 + (py - at.y) ** 2;
      if (distance < least) [best, least] = [{ curve, x, y: curve.y[i] }, distance];
    });
  }
  return best;
}

const figures = [];
for (const node of document.querySelectorAll("figure[data-curves]")) {
  const svg = node.querySelector(":scope > .scroll > svg"), curves = JSON.parse(node.dataset.curves);
  if (!curves.curves.length) continue;
  const figure = { curves, node: curve => document.getElementById(curve.id) };
  figures.push(figure);
  const hover = element("div", { className: "hover", hidden: true }, node);
  const find = event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return nearest(figure, at);
  };
  svg.onmousemove = event => {
    const found = find(event), frame = node.getBoundingClientRect();
    hover.hidden = !found;
    if (!found) return;
    const run = runs[found.curve.run], value = +found.y.toPrecision(3);
    hover.textContent = `${run.arm}, seed ${run.seed}\nstep ${found.x}: ${value}\nrun ${found.curve.run}`;
    const left = event.clientX - frame.left + 14;
    hover.style.left = `${Math.max(0, Math.min(left, frame.width - hover.offsetWidth - 4))}px`;
    hover.style.top = `${event.clientY - frame.top + 14}px`;
  };
  svg.onmouseleave = () => { hover.hidden = true; };
  svg.onclick = event => {
    const found = find(event);
    choose(found ? [found.curve.run] : [], event.shiftKey);
  };
  const arms = new Set(curves.curves.map(({ run }) => runs[run].arm)), legend = element("div", { className: "legend" });
  node.prepend(legend);
  if (arms.size > MANY) {  // behind a click, so that they do not push the figure off the screen
    const more = element("details");
    legend.replaceWith(more);
    more.append(element("summary", { textContent: `${arms.size} arms` }), legend);
  }
  for (const arm of arms) {
    const button = element("button", { type: "button" }, legend);
    button.setAttribute("aria-pressed", "true");
    if (marks.has(arm)) button.append(marks.get(arm).cloneNode(true));
    button.append(arm.replace(/[\w.]+\.(?=\w+=)/g, ""));  // keys without the groups that they stand in
    button.title = arm;
    button.onclick = () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      for (const curve of curves.curves)
        if (runs[curve.run].arm === arm) figure.node(curve).classList.toggle("hidden", !shown);
    };
  }
}

// --- chosen runs: marked in every figure and table; of two, the settings that differ --------------------------------------

const panel = element("div", { className: "compared", hidden: true }, document.querySelector("main"));

function choose(ids, more = false) {
  chosen = more ? [...chosen, ...ids].slice(-2) : ids;
  const arms = new Set(chosen.map(id => runs[id].arm));
  for (const figure of figures)
    for (const curve of figure.curves.curves) {
      const mine = chosen.includes(curve.run);
      figure.node(curve).classList.toggle("chosen", mine);
      figure.node(curve).classList.toggle("faded", chosen.length > 0 && !mine);
    }
  for (const row of document.querySelectorAll("tbody tr")) row.classList.toggle("chosen", arms.has(row.cells[0].textContent));
  panel.hidden = !chosen.length;
  panel.replaceChildren();
  for (const id of chosen) {
    const line = element("div", { textContent: `${runs[id].arm}, seed ${runs[id].seed}: ` }, panel);
    if (runs[id].href) element("a", { textContent: id, href: runs[id].href }, line);
    else line.append(id);
  }
  if (chosen.length === 1) element("div", { className: "note", textContent: "Shift-click another curve to compare." }, panel);
  if (chosen.length !== 2) return;
  const [one, other] = chosen.map(id => runs[id].settings);
  const keys = Object.keys(one).filter(key => one[key] !== other[key]);
  element("pre", { textContent: keys.map(key => `${key}: ${one[key]} → ${other[key]}`).join("\n") || "the same settings" }, panel);
}
