"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const [VALUE, STDERR, LOW, HIGH, N, RANK, MARKS, RUN, DELTA, OWN, UNCOMPARED] = Array(11).keys();
  const COLORS = ["#2f7fd0", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6bbd", "#7f7f7f"];
  const DASHES = ["", "6 3", "2 2", "8 3 2 3"];
  const MOST_DRAWN = 8;
  const MOST_PRINTED = 8;
  const letters = Object.fromEntries(Object.keys(data.marks).map((mark, i) => [mark, String.fromCharCode(97 + i)]));
  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const hasLengths = (i) => data.columns.some((c, j) => c.length && data.cells[i][j]) || data.positions.some((plot) => plot.models[i]);
  const state = {
    sort: null, down: true, view: "value", tasks: false, filter: "", columnFilter: "",
    groups: new Set(data.columns.map((c) => c.group)),
    drawn: new Set(data.models.map((_, i) => i).filter(hasLengths).slice(0, MOST_DRAWN)),
  };

  const lengthLabel = (n) => (n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : String(n));
  function format(value, unit) {
    if (value === null) return unit === "tokens" ? "none" : "";
    if (unit === "share") return value > 0 && 100 * value < 0.05 ? String(Number((100 * value).toPrecision(1))) : (100 * value).toFixed(1);
    if (unit === "tokens") return value ? lengthLabel(value) : "0k";
    if (Math.abs(value) >= 1e5) return value.toExponential(2);
    return value.toFixed(Math.abs(value) < 100 ? 2 : 1);
  }
  const isNoise = (delta) => delta[4] >= 0.05;
  const signed = (value, unit) => (value < 0 ? "−" : "+") + format(Math.abs(value), unit);

  function shownColumns() {
    const wanted = state.columnFilter.toLowerCase();
    return data.columns.map((_, j) => j).filter((j) => {
      const c = data.columns[j];
      return state.groups.has(c.group) && (c.main || state.tasks) &&
        `${c.group} ${c.title}`.toLowerCase().includes(wanted);
    });
  }
  function sortKey(i) {
    if (state.sort === null) return i;
    const cell = data.cells[i][state.sort];
    if (!cell) return null;
    return state.view === "delta" ? (cell[DELTA] ? cell[DELTA][0] : null) : cell[VALUE];
  }
  function shownModels() {
    const wanted = state.filter.toLowerCase();
    const shown = data.models.map((_, i) => i).filter((i) => {
      const m = data.models[i];
      return `${m.name} ${m.attention} ${m.type}`.toLowerCase().includes(wanted);
    });
    const keys = new Map(shown.map((i) => [i, sortKey(i)]));
    const sign = state.sort !== null && state.down ? -1 : 1;
    return shown.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return sign * (x - y) || a - b;
    });
  }

  function cellText(cell, column) {
    const unit = column.unit;
    const marks = cell[MARKS].length ? `<sup>${cell[MARKS].map((m) => letters[m]).join("")}</sup>` : "";
    if (state.view === "delta" && column.kind !== "speed") {
      const delta = cell[DELTA];
      if (!delta) return marks || "–";
      return `${signed(delta[0], unit)} <small>±${format(delta[1], unit)}${isNoise(delta) ? " n" : ""}</small>${marks}`;
    }
    if (state.view === "interval" && cell[LOW] !== null) {
      return `${format(cell[LOW], unit)} – ${format(cell[HIGH], unit)}${marks}`;
    }
    const error = cell[STDERR] === null || unit === "tokens" ? "" : ` <small>±${format(cell[STDERR], unit)}</small>`;
    return format(cell[VALUE], unit) + error + marks;
  }
  function cellClass(cell) {
    const names = [""];
    if (cell[RANK] === 1) names.push("best");
    if (cell[RANK] === 2) names.push("second");
    if (cell[UNCOMPARED]) names.push("uncompared");
    if (state.view === "delta" && cell[DELTA] && isNoise(cell[DELTA])) names.push("noise");
    return names.join(" ");
  }

  // Rows are laid out apart from one another, so that those out of sight cost nothing; hence fixed widths.
  function widths(columns, texts) {
    const plain = (html) => html.replace(/<[^>]*>/g, "").length;
    return columns.map((j, k) => {
      const values = texts.reduce((most, line) => Math.max(most, plain(line[k])), 0);
      const title = data.columns[j].title.length + (data.columns[j].up ? 0 : 2) + 2;
      return Math.ceil(Math.max(0.62 * title, 0.58 * values) + 1.6);
    });
  }
  function drawTable() {
    const columns = shownColumns();
    const models = shownModels();
    const texts = models.map((i) => columns.map((j) => (data.cells[i][j] ? cellText(data.cells[i][j], data.columns[j]) : "")));
    const width = widths(columns, texts);
    const longest = models.reduce((most, i) => Math.max(most, data.models[i].name.length + (data.models[i].name === data.baseline ? 10 : 0)), 5);
    let rules = `.m{width:${Math.min(26, Math.ceil(0.62 * longest + 4))}em}`;
    width.forEach((w, k) => { rules += `.c${k}{width:${w}em}`; });
    byId("widths").textContent = rules;
    let groups = "", titles = "";
    columns.forEach((j, k) => {
      const c = data.columns[j];
      if (k === 0 || data.columns[columns[k - 1]].group !== c.group) {
        const own = columns.map((x, place) => place).filter((place) => data.columns[columns[place]].group === c.group);
        const sum = own.reduce((total, place) => total + width[place], 0);
        groups += `<th role="columnheader" colspan="${own.length}" aria-colspan="${own.length}" style="width:${sum}em"><span>${escape(c.group)}</span></th>`;
      }
      const sorted = state.sort === j;
      const order = sorted ? (state.down ? "descending" : "ascending") : "none";
      const arrow = sorted ? (state.down ? " ▾" : " ▴") : "";
      titles += `<th role="columnheader" class="c${k}" aria-sort="${order}"><button type="button" data-sort="${j}" title="${escape(c.metric)}, ` +
        `${c.up ? "higher" : "lower"} is better">${escape(c.title)}${c.up ? "" : " ↓"}${arrow}</button></th>`;
    });
    const rows = models.map((i, place) => {
      const m = data.models[i];
      const base = m.name === data.baseline ? " <small>baseline</small>" : "";
      const box = `<input type="checkbox" data-draw="${i}" ${state.drawn.has(i) ? "checked" : ""} tabindex="-1" aria-label="draw ${escape(m.name)}">`;
      const cells = columns.map((j, k) => {
        const cell = data.cells[i][j];
        if (!cell) return `<td role="gridcell" class="c${k}"></td>`;
        return `<td role="gridcell" data-cell="${i},${j}" tabindex="-1" class="c${k}${cellClass(cell)}">${texts[place][k]}</td>`;
      });
      return `<tr role="row"><th role="rowheader" class="m" tabindex="-1" title="${escape(m.name)}">${box} ${escape(m.name)}${base}</th>${cells.join("")}</tr>`;
    });
    const first = state.sort === null ? "model" : `<button type="button" data-sort="">models</button>`;
    byId("board").innerHTML = `<thead role="rowgroup"><tr role="row"><th role="columnheader" class="m"></th>${groups}</tr>` +
      `<tr role="row"><th role="columnheader" class="m">${first}</th>${titles}</tr></thead><tbody role="rowgroup">${rows.join("")}</tbody>`;
    const entry = byId("board").querySelector("tbody td[data-cell]");
    if (entry) entry.tabIndex = 0;
    byId("status").textContent = `${models.length} of ${data.models.length} models, ${columns.length} of ${data.columns.length} columns` +
      (state.sort === null ? "" : `, sorted by ${data.columns[state.sort].group} ${data.columns[state.sort].title}`);
    drawLegend(models, columns);
  }
  // Paper does not scroll: each benchmark gets tables of a few columns.
  function drawForPrint() {
    const columns = shownColumns(), models = shownModels();
    const pieces = [];
    columns.forEach((j) => {
      const last = pieces[pieces.length - 1];
      if (last && last.length < MOST_PRINTED && data.columns[last[0]].group === data.columns[j].group) last.push(j);
      else pieces.push([j]);
    });
    byId("print").innerHTML = pieces.map((piece) => {
      const heads = piece.map((j) => `<th scope="col">${escape(data.columns[j].title)}${data.columns[j].up ? "" : " ↓"}</th>`);
      const rows = models.filter((i) => piece.some((j) => data.cells[i][j])).map((i) => {
        const cells = piece.map((j) => {
          const cell = data.cells[i][j];
          return cell ? `<td class="${cellClass(cell)}">${cellText(cell, data.columns[j])}</td>` : "<td></td>";
        });
        return `<tr><th scope="row">${escape(data.models[i].name)}</th>${cells.join("")}</tr>`;
      });
      return `<table><caption>${escape(data.columns[piece[0]].group)}</caption><thead><tr><th></th>${heads.join("")}</tr></thead>` +
        `<tbody>${rows.join("")}</tbody></table>`;
    }).join("");
  }
  addEventListener("beforeprint", drawForPrint);
  matchMedia("print").addEventListener("change", (event) => { if (event.matches) drawForPrint(); });

  function drawLegend(models, columns) {
    const used = new Set();
    models.forEach((i) => columns.forEach((j) => data.cells[i][j] && data.cells[i][j][MARKS].forEach((m) => used.add(m))));
    const lines = [...used].map((m) => `<sup>${letters[m]}</sup> ${m}: ${escape(data.marks[m])}.`);
    lines.unshift("Bold on green: best compared value; underlined on blue: second best; italic: not compared. ± is one standard error." +
      (data.baseline ? " n: noise, as equally good models differ by as much in at least 5 % of comparisons; about one of 20 comparisons of such models has no n." : "") +
      (data.sizes ? ` ${escape(data.sizes)}` : ""));
    lines.push(...new Set(columns.map((j) => escape(data.columns[j].about)).filter(Boolean)));
    byId("legend").innerHTML = lines.map((line) => `<div>${line}</div>`).join("");
  }

  const SCALE = { left: 44, right: 14, top: 20, bottom: 28, width: 380, height: 242 };
  // A model's place among all gives its style, whatever else is drawn; beyond 32 models the next free one.
  function lineStyle(i) {
    const most = COLORS.length * DASHES.length, taken = new Map();
    [...state.drawn].sort((a, b) => a - b).forEach((own) => {
      let place = own % most;
      while (taken.size < most && [...taken.values()].includes(place)) place = (place + 1) % most;
      taken.set(own, place);
    });
    const place = taken.get(i);
    return { color: COLORS[place % COLORS.length], dash: DASHES[Math.floor(place / COLORS.length)] };
  }
  function sweeps() {
    const found = new Map();
    data.columns.forEach((c, j) => {
      if (c.length === null || c.length === 0 || c.kind === "summary" || !state.groups.has(c.group) || !(c.main || state.tasks)) return;
      const key = `${c.group}|${c.subtask}|${c.metric}|${c.parts}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(j);
    });
    return [...found.values()].filter((columns) => columns.length > 1)
      .map((columns) => columns.sort((a, b) => data.columns[a].length - data.columns[b].length));
  }
  function drawSweep(columns) {
    const first = data.columns[columns[0]];
    const series = [...state.drawn].map((i) => [i, columns.filter((j) => data.cells[i][j]).map((j) => {
      const cell = data.cells[i][j];
      return [data.columns[j].length, cell[VALUE], cell[LOW], cell[HIGH]];
    })]);
    const title = [first.group, first.kind === "average" ? "" : first.subtask, first.share].filter(Boolean).join(" ");
    return drawPlot(title, first.unit, first.up, columns.map((j) => [data.columns[j].length, data.columns[j].label]), series);
  }
  function drawPosition(plot) {
    const series = [...state.drawn].filter((i) => plot.models[i]).map((i) => [i, plot.models[i].filter((point) => point[1] !== null)]);
    return drawPlot(plot.title, "", false, plot.ticks, series);
  }
  // Series: [model, [[length, value, low, high], ...]].
  function drawPlot(title, unit, up, ticks, series) {
    const percent = unit === "share";
    const values = series.flatMap(([, points]) => points.map((point) => point[1]));
    if (!values.length) return "";
    // A model that explodes must not press all others to the axis: clip, and mark with arrows.
    const sorted = values.slice().sort((a, b) => a - b);
    const top = percent ? 1 : Math.min(sorted[sorted.length - 1], 2 * sorted[Math.floor(sorted.length / 2)]) * 1.05;
    const lows = series.flatMap(([, points]) => points.map((point) => point[2])).filter((low) => low > 0);
    const bottom = percent ? 0 : 0.95 * Math.min(sorted[0], top, ...lows);
    const [shortest, longest] = [ticks[0][0], ticks[ticks.length - 1][0]];
    const S = SCALE;
    const x = (length) => S.left + Math.log2(length / shortest) / (Math.log2(longest / shortest) || 1) * (S.width - S.left - S.right);
    const y = (value) => S.top + (1 - (Math.min(Math.max(value, bottom), top) - bottom) / (top - bottom || 1)) * (S.height - S.top - S.bottom);
    let svg = "";
    // Round values, four to eight of them.
    const power = 10 ** Math.floor(Math.log10((top - bottom) / 4 || 1));
    const step = percent ? 0.25 : [5, 2, 1].map((k) => k * power).find((own) => own <= (top - bottom) / 4) || power;
    for (let k = Math.ceil(bottom / step - 1e-9); k * step <= top + 1e-9 * step; k++) {
      const value = k * step;
      svg += `<line class="axis" x1="${S.left}" x2="${S.width - S.right}" y1="${y(value)}" y2="${y(value)}"/>` +
        `<text x="${S.left - 4}" y="${y(value) + 4}" text-anchor="end">${percent ? Math.round(100 * value) : Number(value.toPrecision(6))}</text>`;
    }
    const labels = new Map(ticks);
    ticks.forEach(([length, label]) => {
      svg += `<text x="${x(length)}" y="${S.height - 10}" text-anchor="middle">${label}</text>`;
    });
    const train = data.trainLength;
    if (train && train >= shortest && train <= longest) {
      const isLeft = train * train <= shortest * longest;
      svg += `<line class="train" x1="${x(train)}" x2="${x(train)}" y1="${S.top}" y2="${S.height - S.bottom}"><title>training length ${lengthLabel(train)}</title></line>` +
        `<text x="${x(train) + (isLeft ? -3 : 3)}" y="${S.top - 6}" text-anchor="${isLeft ? "start" : "end"}">trained</text>`;
    }
    const described = [];
    series.forEach(([i, points]) => {
      if (!points.length) return;
      const { color, dash } = lineStyle(i);
      const banded = points.filter((point) => point[2] !== null && point[3] !== null);
      if (banded.length > 1) {
        const upper = banded.map(([length, , , high]) => `${x(length)},${y(high)}`);
        const lower = banded.map(([length, , low]) => `${x(length)},${y(low)}`).reverse();
        svg += `<polygon points="${upper.concat(lower).join(" ")}" fill="${color}" opacity="0.16"/>`;
      }
      svg += `<polyline points="${points.map(([length, value]) => `${x(length)},${y(value)}`).join(" ")}" fill="none" stroke="${color}" stroke-width="2" stroke-dasharray="${dash}"/>`;
      points.forEach(([length, value, low, high]) => {
        const label = `${escape(data.models[i].name)}, ${labels.get(length)}: ${format(value, unit)}` +
          (low === null || high === null ? "" : ` (${format(low, unit)} to ${format(high, unit)})`);
        const mark = value > top ? ["text", `x="${x(length)}" y="${S.top + 10}" text-anchor="middle" style="fill:${color}"`, "▲"]
          : ["circle", `cx="${x(length)}" cy="${y(value)}" r="3.2" fill="${color}"`, ""];
        svg += `<${mark[0]} ${mark[1]}>${mark[2]}<title>${label}</title></${mark[0]}>`;
        described.push(label);
      });
    });
    return `<figure><figcaption>${escape(title)}${up ? "" : " (lower is better)"}</figcaption>` +
      `<svg viewBox="0 0 ${S.width} ${S.height}" role="img" aria-label="${escape(title)}. ${described.join("; ")}">${svg}</svg></figure>`;
  }
  function drawSweeps() {
    const plots = sweeps().map(drawSweep).concat(data.positions.map(drawPosition)).join("");
    byId("sweeps").hidden = !plots;
    const keys = [...state.drawn].sort((a, b) => a - b).map((i) => {
      const { color, dash } = lineStyle(i);
      return `<span class="legend-line"><svg viewBox="0 0 32 10" aria-hidden="true"><line x1="0" x2="32" y1="5" y2="5" stroke="${color}" stroke-width="3" stroke-dasharray="${dash}"/></svg>${escape(data.models[i].name)}</span>`;
    });
    byId("sweep-plots").innerHTML = plots && `<p style="grid-column:1/-1;margin:0">${keys.join("")}</p>${plots}`;
  }

  function heatColor(score) {
    // From vermilion over yellow to bluish green, told apart by lightness as well.
    const stops = [[178, 60, 20], [240, 200, 90], [20, 120, 90]];
    const at = Math.min(score * 2, 1.999), low = Math.floor(at), part = at - low;
    const mixed = stops[low].map((v, k) => Math.round(v + (stops[low + 1][k] - v) * part));
    const [r, g, b] = mixed.map((v) => (v / 255 <= 0.03928 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    // Above this luminance black has the better contrast.
    const light = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179;
    return `background:rgb(${mixed.join(",")});color:${light ? "#000" : "#fff"}`;
  }
  function setUpHeat() {
    byId("heat").hidden = !data.heat.length;
    if (!data.heat.length) return;
    byId("heat-task").innerHTML = data.heat.map((h, k) => `<option value="${k}">${escape(`${h.group} ${h.subtask}`)}</option>`).join("");
    const fill = () => {
      const own = data.heat[byId("heat-task").value].models;
      const old = byId("heat-model").value;
      byId("heat-model").innerHTML = Object.keys(own).map((i) => `<option value="${i}">${escape(data.models[i].name)}</option>`).join("");
      if (old in own) byId("heat-model").value = old;
      drawHeat();
    };
    byId("heat-task").addEventListener("change", fill);
    byId("heat-model").addEventListener("change", drawHeat);
    fill();
  }
  function drawHeat() {
    const map = data.heat[byId("heat-task").value];
    const own = map.models[byId("heat-model").value];
    const depths = [...Array(10).keys()];
    const body = depths.map((d) => `<tr><th scope="row">${10 * d}–${10 * (d + 1)} %</th>` + map.lengths.map((length) => {
      const field = own[length] && own[length][d];
      if (!field || !field[1]) return "<td>–</td>";
      return `<td style="${heatColor(field[0])}">${Math.round(100 * field[0])} <small>n=${field[1]}</small></td>`;
    }).join("") + "</tr>").join("");
    byId("heat-map").innerHTML = `<table><caption>${escape(`${map.group} ${map.subtask}`.trim())}, ${escape(data.models[byId("heat-model").value].name)}. Rows: depth. Columns: length.</caption><thead><tr><th></th>` +
      map.lengths.map((length) => `<th scope="col">${length}</th>`).join("") + `</tr></thead><tbody>${body}</tbody></table>`;
  }

  function list(entries) {
    return `<dl>${entries.filter(([, v]) => v !== undefined && v !== null && v !== "").map(([k, v]) => `<dt>${escape(k)}</dt><dd>${escape(v)}</dd>`).join("")}</dl>`;
  }
  function showDetails(i, j) {
    const cell = data.cells[i][j], c = data.columns[j], own = cell[OWN], delta = cell[DELTA];
    byId("details-title").textContent = `${data.models[i].name}: ${c.group} ${c.title}`;
    const interval = cell[LOW] === null ? null : `${format(cell[LOW], c.unit)} to ${format(cell[HIGH], c.unit)}`;
    let html = list([
      ["value", format(cell[VALUE], c.unit) + (c.unit === "share" ? " %" : "")],
      ["standard error", cell[STDERR] === null ? "not known" : format(cell[STDERR], c.unit)],
      ["95 % interval", interval], ["samples", own.total && own.total !== cell[N] ? `${cell[N]} of ${own.total}` : cell[N]],
      ["metric", c.metric + (own.filter ? `, filter ${own.filter}` : "")],
      ["difference from the baseline", delta && `${signed(delta[0], c.unit)} ± ${format(delta[1], c.unit)}, 95 % interval ` +
        `${format(delta[2], c.unit)} to ${format(delta[3], c.unit)}, p = ${delta[4].toPrecision(2)} (${delta[5]})${isNoise(delta) ? ": noise" : ""}`],
      ["printed in", own.source], ["task", own.task], ["task version", own.version],
      ["data hash", own.hash], ["tokens of the prompts", own.tokens && `${own.tokens[0]} to ${own.tokens[1]}`],
      ["data seed", own.seed], ["tokenizer", own.tokenizer], ["examples in the prompt", own.fewshot], ["empty answers", own.empty],
    ]);
    if (own.tasks) html += `<h3>Made of</h3><ul>${own.tasks.map((task) => `<li>${partOf(i, task)}</li>`).join("")}</ul>`;
    if (cell[MARKS].length) html += `<h3>Marks</h3><ul>${cell[MARKS].map((m) => `<li>${m}: ${escape(data.marks[m])}</li>`).join("")}</ul>`;
    if (cell[RUN] >= 0) html += `<h3>Run</h3>${list(Object.entries(data.runs[cell[RUN]]))}`;
    const examples = data.examples[`${i},${j}`];
    if (examples) {
      html += `<h3>Examples</h3>` + examples.map(([prompt, target, answer, score]) =>
        `<p>score ${score === null ? "not known" : score}</p><pre>${escape(prompt)}</pre>` + list([["right", target], ["answer", answer || "(none)"]])).join("");
    }
    byId("details-body").innerHTML = html;
    if (!byId("details").open) byId("details").showModal();
    byId("details").scrollTop = 0;
  }
  // A task's value, as a button that tells what is behind it.
  function partOf(i, task) {
    const j = data.cells[i].findIndex((cell) => cell && cell[OWN].task === task);
    if (j < 0) return escape(task);
    const cell = data.cells[i][j], unit = data.columns[j].unit;
    const error = cell[STDERR] === null ? "" : ` ±${format(cell[STDERR], unit)}`;
    return `<button type="button" data-cell="${i},${j}">${escape(task)}: ${format(cell[VALUE], unit)}${error}</button>`;
  }
  byId("details-body").addEventListener("click", (event) => {
    const part = event.target.closest("[data-cell]");
    if (part) showDetails(...part.dataset.cell.split(",").map(Number));
  });

  function moveFocus(event, cell) {
    const row = cell.parentElement, columns = [...row.children], place = columns.indexOf(cell);
    const next = {
      ArrowRight: () => columns[place + 1], ArrowLeft: () => columns[place - 1],
      Home: () => columns[1], End: () => columns[columns.length - 1],
      ArrowDown: () => row.nextElementSibling && row.nextElementSibling.children[place],
      ArrowUp: () => row.previousElementSibling && row.previousElementSibling.children[place],
    }[event.key];
    if (!next) return;
    event.preventDefault();
    const target = next();
    if (!target) return;
    if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
    cell.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }
  byId("board").addEventListener("keydown", (event) => {
    const cell = event.target.closest("tbody td, tbody th");
    if (!cell) return;
    if ((event.key === "Enter" || event.key === " ") && cell.dataset.cell) {
      event.preventDefault();
      showDetails(...cell.dataset.cell.split(",").map(Number));
    } else if ((event.key === "Enter" || event.key === " ") && cell.matches("th") && event.target === cell) {
      event.preventDefault();
      cell.querySelector("input").click();
    } else moveFocus(event, cell);
  });
  byId("board").addEventListener("click", (event) => {
    const sort = event.target.closest("[data-sort]");
    if (sort) {
      const j = sort.dataset.sort === "" ? null : Number(sort.dataset.sort);
      const best = j !== null && data.columns[j].up;
      state.down = j === state.sort ? !state.down : best;
      state.sort = j;
      drawTable();
      const again = byId("board").querySelector(`[data-sort="${sort.dataset.sort}"]`);
      if (again) again.focus();
      return;
    }
    const box = event.target.closest("[data-draw]");
    if (box) {
      const i = Number(box.dataset.draw);
      if (box.checked) state.drawn.add(i); else state.drawn.delete(i);
      drawSweeps();
      return;
    }
    const cell = event.target.closest("td[data-cell]");
    if (cell) showDetails(...cell.dataset.cell.split(",").map(Number));
  });
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value; drawTable(); });
  byId("column-filter").addEventListener("input", (event) => { state.columnFilter = event.target.value; drawTable(); });
  byId("view").addEventListener("change", (event) => { state.view = event.target.value; drawTable(); });
  byId("tasks").addEventListener("change", (event) => { state.tasks = event.target.checked; drawTable(); drawSweeps(); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const groups = [...new Set(data.columns.map((c) => c.group))];
  byId("groups").insertAdjacentHTML("beforeend", groups.map((g) => `<label><input type="checkbox" checked value="${escape(g)}"> ${escape(g)}</label>`).join(""));
  byId("groups").addEventListener("change", (event) => {
    if (event.target.checked) state.groups.add(event.target.value); else state.groups.delete(event.target.value);
    drawTable();
    drawSweeps();
  });
  if (!data.baseline) byId("view").querySelector('[value="delta"]').remove();
  if (data.columns.every((c) => c.main)) byId("tasks").parentElement.hidden = true;
  byId("about").textContent = `${data.models.length} models, ${data.columns.length} columns, ${data.published ? "published, not measured by patheval" : `from ${data.numFiles} results files`}. Shares are in percent.` +
    (data.baseline ? ` Differences are from ${data.baseline}${data.published ? "" : ", paired on equal prompts where their scores are at hand"}.` : "") +
    " Choose a cell, by click or Enter, for what is behind it; arrow keys move between cells.";
  const hidden = data.problems.map(([file, reason]) => `<li>${escape(file)}: ${escape(reason)}</li>`)
    .concat(data.hidden.map(([model, task, metric, status, reason, file]) =>
      `<li>${escape(model)}, ${escape(task)}, ${escape(metric)}: ${status}${reason ? `, ${escape(reason)}` : ""} (${escape(file)})</li>`));
  byId("hidden").innerHTML = hidden.length ? `<details ${hidden.length < 12 ? "open" : ""}><summary>${hidden.length} entries</summary><ul>${hidden.join("")}</ul></details>` :
    "<p>Every file was read in full and every value is shown.</p>";
  drawTable();
  drawSweeps();
  setUpHeat();
  document.documentElement.dataset.ready = "true";
})();
