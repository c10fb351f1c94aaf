import { Stage } from "./scene.js";

// Text from files is set as textContent, never as HTML.
const $ = (id) => document.getElementById(id);
const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd"], CELLS = 24, LEFT = "#d9480f", RIGHT = "#1864ab";
const config = { displaylogo: false, responsive: true, displayModeBar: false };
let run = null, shown = null, stage = null, chosen = { left: null, right: null }, asked = 0, player = null;

async function ask(path) {
  const answer = await fetch(path);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}

function element(kind, text, parent) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly interprets some HTML
const short = (x) => Number(x).toPrecision(4);
const operators = () => new Set([...document.querySelectorAll("#operators input:checked")].map((b) => +b.value));

function heatmap(x, y, fitness, low, high) {
  // The best fitness in each cell.
  const z = Array.from({ length: CELLS }, () => Array(CELLS).fill(null));
  const cell = (v, d) => Math.min(CELLS - 1, Math.max(0, Math.floor(((v - low[d]) / (high[d] - low[d])) * CELLS)));
  x.forEach((_, i) => {
    const r = cell(y[i], 1), c = cell(x[i], 0);
    if (z[r][c] === null || fitness[i] > z[r][c]) z[r][c] = fitness[i];
  });
  const middles = (d) => Array.from({ length: CELLS }, (_, i) => low[d] + ((i + 0.5) / CELLS) * (high[d] - low[d]));
  return { type: "heatmap", x: middles(0), y: middles(1), z, colorscale: "Viridis", hoverinfo: "skip", opacity: 0.8,
    zmin: run.fitness[0], zmax: run.fitness[1],
    colorbar: { title: { text: "fitness" }, thickness: 12 } };
}

function drawArchive() {
  const wanted = operators(), [low, high] = run.bounds, size = low.length;
  const members = shown.id.map((_, i) => i).filter((i) => wanted.has(shown.operator[i]));
  const of = (d) => members.map((i) => shown.descriptor[i][d]);
  const fitness = members.map((i) => shown.fitness[i]);
  const colour = (i) => ({ [chosen.left]: LEFT, [chosen.right]: RIGHT })[shown.id[i]];
  const points = (x, y, axis) => ({
    type: "scatter", mode: "markers", x, y, xaxis: "x" + axis, yaxis: "y" + axis, customdata: members.map((i) => shown.id[i]),
    text: members.map((i) => `id ${shown.id[i]}<br>fitness ${short(shown.fitness[i])}<br>${plain(run.operators[shown.operator[i]])}` +
      (shown.kept[i] ? "" : "<br>policy not stored")),
    hoverinfo: "text", marker: { size: members.map((i) => (colour(i) ? 13 : 8)), color: size === 2 ? members.map((i) => colour(i) || "#fff") : fitness,
      colorscale: "Viridis", cmin: run.fitness[0], cmax: run.fitness[1], showscale: size !== 2 && !axis,
      colorbar: { title: { text: "fitness" }, thickness: 12 }, symbol: members.map((i) => (shown.kept[i] ? "circle" : "circle-open")),
      line: { width: members.map((i) => (colour(i) ? 3 : 1)), color: members.map((i) => colour(i) || "#333") } },
  });
  const layout = { margin: { l: 50, r: 10, t: 10, b: 45 }, showlegend: false, hovermode: "closest" };
  const margin = (d) => 0.03 * (high[d] - low[d]); // so that points on the border can be clicked
  const axis = (d) => ({ title: { text: plain(run.labels[d]) }, range: [low[d] - margin(d), high[d] + margin(d)], zeroline: false });
  let traces;
  if (size === 1) {
    traces = [points(of(0), fitness, "")];
    Object.assign(layout, { xaxis: axis(0), yaxis: { title: { text: "fitness" } } });
  } else if (size === 2) {
    traces = [heatmap(of(0), of(1), fitness, low, high), points(of(0), of(1), "")];
    Object.assign(layout, { xaxis: axis(0), yaxis: axis(1) });
  } else {
    const pairs = [];
    for (let a = 0; a < size; a++) for (let b = a + 1; b < size; b++) pairs.push([a, b]);
    traces = pairs.map(([a, b], n) => points(of(a), of(b), n ? n + 1 : ""));
    pairs.forEach(([a, b], n) => {
      layout["xaxis" + (n ? n + 1 : "")] = axis(a);
      layout["yaxis" + (n ? n + 1 : "")] = axis(b);
    });
    layout.grid = { rows: Math.ceil(pairs.length / 2), columns: 2, pattern: "independent", ygap: 0.35, xgap: 0.2 };
  }
  $("archive").classList.toggle("pairs", size > 2);
  Plotly.react("archive", traces, layout, config);
  $("archive").removeAllListeners("plotly_click");
  $("archive").on("plotly_click", (event) => {
    const id = event.points.map((p) => p.customdata).find((c) => c !== undefined);
    if (id !== undefined) show(document.querySelector("input[name=side]:checked").value, id);
  });
  $("count").textContent = `${members.length} of ${shown.id.length} individuals`;
}

async function moveTo(generation) {
  $("which").textContent = `generation ${generation}`;
  const turn = ++asked;
  const answer = await ask(`archive?generation=${generation}`);
  if (turn !== asked) return; // the slider has moved meanwhile
  shown = answer;
  drawArchive();
}

async function present(side, id) {
  const place = $(side);
  place.replaceChildren(element("p", `individual ${id} ...`));
  const one = await ask(`individual?id=${id}`);
  chosen[side] = id;
  stage.hide(side);
  if (one.kept) {
    const content = await (await fetch(`poses?id=${id}`)).arrayBuffer();
    const numbers = new Float32Array(content);
    stage.show(side, numbers.subarray(1), numbers[0]);
  }
  place.replaceChildren();
  const head = element("p", undefined, place);
  const name = element("b", `individual ${one.id}`, head);
  name.style.color = side === "left" ? LEFT : RIGHT;
  const away = element("button", "remove", head);
  away.onclick = () => clear(side);
  element("div", `fitness ${short(one.fitness)}`, head);
  element("div", `descriptor (${one.descriptor.map(short).join(", ")})`, head);
  if (one.kept) {
    element("div", `in this episode: ${short(one.fitness_here)} in ${one.steps} steps`, head).className = "soft";
    const link = element("a", "download the policy", head);
    link.href = `policy?id=${one.id}`;
    link.download = "policy.safetensors";
    for (const [key, label, traces] of [
      ["reward", "reward", [{ x: one.time, y: one.reward, mode: "lines" }]],
      ["contacts", "foot on the ground", one.contacts.map((c, i) => ({ x: one.time, y: c.map((v) => (v ? i + 1 : null)), mode: "markers", marker: { symbol: "line-ns", size: 8, line: { width: Math.max(1, Math.round(160 / c.length)), color: COLOURS[i % COLOURS.length] } } }))],
    ]) {
      if (!traces.length) continue;
      const chart = element("div", undefined, place);
      chart.className = "trace " + key;
      Plotly.newPlot(chart, traces, { margin: { l: 40, r: 5, t: 5, b: 32 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)",
        xaxis: { title: { text: "seconds" } }, yaxis: { title: { text: label }, ...(key === "contacts" ? { dtick: 1, range: [0.5, one.contacts.length + 0.5] } : {}) } }, config);
    }
  } else {
    element("div", "Its policy is not stored: each checkpoint stores the policies in the archive, and no others.", head).className = "soft";
  }
  const box = element("div", undefined, place);
  box.className = "lineage";
  const table = element("table", undefined, box);
  const titles = element("tr", undefined, table);
  ["lineage", "generation", "operator", "fitness"].forEach((t) => element("th", t, titles));
  for (const a of one.lineage) {
    const row = element("tr", undefined, table);
    [a.id, a.generation, run.operators[a.operator] || a.operator, short(a.fitness)].forEach((v) => element("td", v, row));
  }
  drawArchive();
}

function clear(side) {
  stage.hide(side);
  chosen[side] = null;
  $(side).replaceChildren(element("p", side === "right" ? "choose “right” and click an individual to compare" : ""));
  drawArchive();
}

async function follow() {
  // A run may still be training: if the slider is at the last generation, it follows.
  const slider = $("generation"), before = run;
  run = await ask("run");
  const atEnd = before === null || +slider.value === before.last;
  slider.min = run.first;
  slider.max = run.last;
  if (before === null) {
    document.title = run.title;
    $("title").textContent = run.title;
    $("name").textContent = run.name;
    stage = new Stage($("scene"), run.shapes);
  }
  for (const [index, name] of Object.entries(run.operators)) {
    if (document.querySelector(`#operators input[value="${index}"]`)) continue;
    const label = element("label", undefined, $("operators"));
    const box = element("input", undefined, label);
    Object.assign(box, { type: "checkbox", checked: true, value: index, onchange: drawArchive });
    label.append(" " + name);
  }
  if (atEnd && (before === null || before.last !== run.last || before.best !== run.best)) {
    slider.value = run.last;
    await moveTo(run.last);
  }
  if (before === null) {
    clear("right");
    await show("left", run.best);
  }
}

function pause() {
  clearInterval(player);
  player = null;
  $("play").textContent = "play";
}

function play() {
  // Play from the slider's position, or from the start if it is at the end. A whole run takes about ten seconds.
  if (player !== null) return pause();
  const slider = $("generation");
  if (+slider.value >= run.last) slider.value = run.first;
  $("play").textContent = "pause";
  const step = Math.max(1, Math.round((run.last - run.first) / 60));
  player = setInterval(() => {
    slider.value = Math.min(run.last, +slider.value + step);
    guarded(moveTo)(+slider.value);
    if (+slider.value >= run.last) pause();
  }, 170);
}

// An error stays on the page until the next action succeeds.
const guarded = (action) => (...rest) => action(...rest).then(
  () => { $("trouble").textContent = ""; },
  (error) => { $("trouble").textContent = error.message; });
const show = guarded(present);
$("generation").oninput = () => { pause(); guarded(moveTo)(+$("generation").value); };
$("play").onclick = play;
guarded(follow)();
setInterval(guarded(follow), 4000);
