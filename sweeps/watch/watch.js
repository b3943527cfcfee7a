// Asks for the state and for curves that have grown, and draws them. Text from runs only ever becomes text.
"use strict";
const runs = new Map();  // id -> {arm, seed, points: [[step, reward, k3], ...]}
const looks = new Map();  // arm -> {colour, dash}, as the table above shows it in the browser's scheme
let look = 0, only = null;
const figure = document.getElementById("curves"), hover = figure.querySelector(".hover");
const titles = { 1: "held-out reward", 2: "K3 (nats), at evaluations" };
const LOGARITHMIC = "2", LEFT = 64, RIGHT = 20, TOP = 28, BOTTOM = 24;

// --- drawing --------------------------------------------------------------------------------------------------------------

function shown() {
  return [...runs].filter(([, run]) => looks.has(run.arm) && (only === null || run.arm === only));
}

// Round numbers from low to high, at most `most` of them: multiples of 1, 2 or 5 times a power of ten, or powers of ten.
function ticks(low, high, most, log = false) {
  const [first, last] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const power = 10 ** Math.floor(Math.log10((last - first) / most));
  const step = log ? Math.ceil((last - first) / most) : [1, 2, 5, 10].map(by => by * power).find(by => by * most >= last - first);
  const values = [];
  for (let at = Math.ceil(first / step - 1e-9); at * step <= last + 1e-9 * step; at++) values.push(at * step);
  return log ? values.map(value => 10 ** value) : values;
}

// Functions from data to pixels, and the ends of the axes; null where there is nothing to draw.
function scales(canvas) {
  const key = canvas.dataset.key, log = key === LOGARITHMIC;
  let last = 1, low = Infinity, high = -Infinity;
  for (const [, run] of shown())
    for (const point of run.points) {
      const value = point[key];
      last = Math.max(last, point[0]);
      if (value === null || (log && value <= 0)) continue;
      low = Math.min(low, value); high = Math.max(high, value);
    }
  if (low > high) return null;
  if (log) { low = 10 ** Math.floor(Math.log10(low)); high = 10 ** Math.floor(Math.log10(high) + 1); }
  else { low = Math.min(low, 0); high = Math.max(high, 1); }
  const along = value => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const width = canvas.clientWidth - LEFT - RIGHT, height = canvas.clientHeight - TOP - BOTTOM;
  return { log, last, low, high, x: step => LEFT + width * step / last, y: value => TOP + height * (1 - along(value)) };
}

function axes(pen, canvas, scale) {
  const style = getComputedStyle(canvas), bottom = canvas.clientHeight - BOTTOM, right = canvas.clientWidth - RIGHT;
  pen.fillStyle = style.color; pen.strokeStyle = style.borderColor; pen.lineWidth = 1; pen.globalAlpha = 1;
  pen.font = "12px system-ui, sans-serif"; pen.setLineDash([]);
  pen.textAlign = "left"; pen.fillText(titles[canvas.dataset.key], 4, 14);
  if (!scale) { pen.fillText("no evaluation yet", LEFT, 60); return; }
  const line = (...points) => { pen.beginPath(); pen.moveTo(...points[0]); pen.lineTo(...points[1]); pen.stroke(); };
  pen.textAlign = "right";
  for (const value of ticks(scale.low, scale.high, 6, scale.log)) {
    line([LEFT, scale.y(value)], [right, scale.y(value)]);
    pen.fillText(scale.log ? value.toExponential(0) : +value.toPrecision(2), LEFT - 6, scale.y(value) + 4);
  }
  pen.fillText("step", LEFT - 14, canvas.clientHeight - 6);
  pen.textAlign = "center";
  for (const step of ticks(0, scale.last, (right - LEFT) / 90)) {
    line([scale.x(step), bottom], [scale.x(step), bottom + 4]);
    pen.fillText(step, scale.x(step), canvas.clientHeight - 6);
  }
}

function draw() {
  for (const canvas of figure.querySelectorAll("canvas")) {
    const ratio = devicePixelRatio, pen = canvas.getContext("2d"), key = canvas.dataset.key, list = shown();
    canvas.width = canvas.clientWidth * ratio; canvas.height = canvas.clientHeight * ratio;
    pen.scale(ratio, ratio);
    const scale = canvas.scale = scales(canvas);
    axes(pen, canvas, scale);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${titles[key]} of ${list.length} runs`);
    if (!scale) continue;
    pen.lineWidth = 1.3; pen.globalAlpha = list.length > 50 ? .4 : .9;
    for (const [, run] of list) {
      const {colour, dash} = looks.get(run.arm);
      pen.strokeStyle = colour; pen.setLineDash(dash.map(part => part * pen.lineWidth));
      pen.beginPath();
      let begun = false;
      for (const point of run.points) {
        if (point[key] === null || (scale.log && point[key] <= 0)) continue;
        const at = [scale.x(point[0]), scale.y(point[key])];
        if (begun) pen.lineTo(...at); else pen.moveTo(...at);
        begun = true;
      }
      pen.stroke();
    }
  }
}

function nearest(canvas, x, y) {
  let best = null, least = 20 ** 2;
  for (const [id, run] of shown())
    for (const point of run.points) {
      const value = point[canvas.dataset.key];
      if (value === null || (canvas.scale.log && value <= 0)) continue;
      const distance = (canvas.scale.x(point[0]) - x) ** 2 + (canvas.scale.y(value) - y) ** 2;
      if (distance < least) [best, least] = [`${run.arm}, seed ${run.seed}\nstep ${point[0]}: ${+value.toPrecision(3)}\nrun ${id}`, distance];
    }
  return best;
}

for (const canvas of figure.querySelectorAll("canvas")) {
  canvas.onmousemove = event => {
    const found = canvas.scale && nearest(canvas, event.offsetX, event.offsetY);
    hover.hidden = !found;
    if (!found) return;
    hover.textContent = found;
    hover.style.left = `${Math.max(0, Math.min(canvas.offsetLeft + event.offsetX + 14, figure.clientWidth - hover.offsetWidth - 4))}px`;
    hover.style.top = `${canvas.offsetTop + event.offsetY + 14}px`;
  };
  canvas.onmouseleave = () => { hover.hidden = true; };
}

document.getElementById("state").onclick = event => {
  const row = event.target.closest("tr[data-arm]");
  if (!row) return;
  only = only === row.dataset.arm ? null : row.dataset.arm;
  mark(); draw();
};

function see() {
  looks.clear();
  for (const row of document.querySelectorAll("tr[data-arm]")) {
    const dash = row.dataset.dash ? row.dataset.dash.split(" ").map(Number) : [];
    looks.set(row.dataset.arm, { colour: getComputedStyle(row.querySelector(".mark path")).fill, dash });
  }
}

function mark() {
  for (const row of document.querySelectorAll("tr[data-arm]")) row.classList.toggle("chosen", row.dataset.arm === only);
}

// --- following ------------------------------------------------------------------------------------------------------------

const note = document.getElementById("connection"), following = note.textContent;

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(answer.status);
  return answer;
}

async function follow() {
  let behind = 0;
  try {
    const grown = await (await ask(`curves?since=${look}`)).json();
    if (grown.fresh) runs.clear();
    for (const [id, run] of Object.entries(grown.runs)) runs.set(id, run);
    look = grown.look;
    const state = document.getElementById("state");
    state.innerHTML = await (await ask("state")).text();  // escaped by its template
    behind = +state.querySelector("[data-behind]").dataset.behind;
    see();
    if (only !== null && !looks.has(only)) only = null;
    mark();
    if (grown.fresh || Object.keys(grown.runs).length) draw();
    note.textContent = following;
  } catch (error) {
    note.textContent = "faultline watch does not answer any more; this is what it said last.";
  }
  setTimeout(follow, behind ? 100 : every);
}

onresize = draw;
matchMedia("(prefers-color-scheme: dark)").onchange = () => { see(); draw(); };
follow();
