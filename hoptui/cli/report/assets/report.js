"use strict";
// Draws the charts of a report with uPlot: zoom by dragging, one cursor, by time or by iteration.
(() => {
  const page = JSON.parse(document.getElementById("charts").textContent);
  const places = [...document.querySelectorAll("figure.chart > .live")];
  const TIME = "time", ITERATION = "iteration";
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const CROWDED = 12; // with more marks their names have one row
  const NEAR_MARK = 6; // pixels between a mark and the cursor that is on it
  const drawn = [];
  let mode = TIME, full = [0, 1], seen = full; // `seen`: the part of the x axis that all charts show

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ink = (number) => css(`--ink${number % 8}`);
  const known = (value) => value !== null && value !== undefined;

  // Numbers as text --------------------------------------------------------------------------------------

  function si(value, digits = 4) {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-3 || size >= 1e18) return value.toExponential(2).replace(/\.?0+e/, "e");
    if (size < 1000) return String(Number(value.toPrecision(digits)));
    const power = Math.min(5, Math.floor(Math.log10(size) / 3));
    return `${Number((value / 1000 ** power).toPrecision(digits))} ${["", "k", "M", "G", "T", "P"][power]}`;
  }

  function elapsed(seconds) {
    const whole = Math.round(Math.abs(seconds)), two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    const sign = seconds < 0 ? "−" : "+", rest = two(whole % 60);
    return hours ? `${sign}${hours}:${two(minutes)}:${rest}` : `${sign}${minutes}:${rest}`;
  }

  const grouped = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, " ");
  const placeText = (x) => !known(x) ? "–" : mode === TIME ? elapsed(x) : grouped(x);

  // The value axis: as hoptui/presentation/scales.py --------------------------------------------------------

  function typicalRange(low, high, middle) {
    const OUTER = 0.02, INNER = 0.1, ROOM = 0.25, NEAR = 0.25;
    const ordered = (values) => values.filter(Number.isFinite).sort((a, b) => a - b);
    const inner = (values, outside) => {
      const skipped = Math.floor(values.length * outside);
      return [values[skipped], values[values.length - 1 - skipped]];
    };
    const all = ordered(middle);
    if (!all.length) return [];
    const [first, last] = inner(all, OUTER);
    const margin = Math.max(last - first, ROOM * Math.abs(all[Math.floor(all.length / 2)]));
    if (!margin) return [all[0], all[all.length - 1]];
    const lows = ordered(low), highs = ordered(high);
    const least = inner(lows.length ? lows : all, INNER)[0], most = inner(highs.length ? highs : all, INNER)[1];
    const lowest = Math.max(first - margin, all[0]), highest = Math.min(last + margin, all[all.length - 1]);
    return [
      Math.min(lowest, Math.max(least, lowest - NEAR * margin)),
      Math.max(highest, Math.min(most, highest + NEAR * margin)),
    ];
  }

  function valueRange(ends) {
    if (!ends.length) return [0, 1];
    let low = Math.min(...ends), high = Math.max(...ends);
    if (low > 0 && high - low >= low / 2) low = 0;
    else if (high < 0 && high - low >= -high / 2) high = 0;
    if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
      const spread = Math.abs(high) * 0.05 || 1;
      return low ? [low - spread, high + spread] : [0, 1];
    }
    const room = (high - low) * 0.04;
    return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
  }

  // Whole powers of ten around what is above zero.
  function logRange(ends) {
    if (!ends.length) return [0.1, 1];
    const low = Math.floor(Math.min(...ends) + 1e-9), high = Math.ceil(Math.max(...ends) - 1e-9);
    return [10 ** low, 10 ** Math.max(high, low + 1)];
  }

  const wholePower = (v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 ? v : null;

  const powers = (values) => values.filter((v) => v > 0).map(Math.log10);

  // The data of a chart ------------------------------------------------------------------------------------

  function table(curve) {
    const axis = page.axes[curve.axis], xs = mode === TIME ? axis.t : axis.i;
    const columns = [[], [], [], []];
    const low = curve.low || curve.middle, high = curve.high || curve.middle;
    xs.forEach((x, i) => {
      if (!known(x)) return;
      [x, curve.middle[i], low[i], high[i]].forEach((value, n) => columns[n].push(value));
    });
    return columns;
  }

  function dataOf(chart) {
    if (chart.kind === "strip") {
      const edges = chart.parts.flatMap((part) => ends(part)).filter(known);
      const xs = [...new Set(edges)].sort((a, b) => a - b);
      return [xs, xs.map(() => 0.5)];
    }
    const tables = chart.curves.map(table);
    return tables.length === 1 ? tables[0] : uPlot.join(tables, tables.map((columns) => columns.map(() => 2)));
  }

  const ends = (part) => mode === TIME ? part.slice(0, 2) : part.slice(2, 4);

  // Values between two gaps, which no line shows. Values that are undefined belong to other curves.
  function isolated(values) {
    const there = [...values.keys()].filter((i) => values[i] !== undefined);
    return there.filter((i, n) => known(values[i]) && !known(values[there[n - 1]]) && !known(values[there[n + 1]]));
  }

  // Drawing ------------------------------------------------------------------------------------------------

  const place = (mark) => mode === TIME ? mark[0] : mark[1];
  const marksOf = (chart) => page.marks[chart.marks];
  const isSeen = (x) => known(x) && x >= seen[0] && x <= seen[1];

  // What the mark under the cursor is, for the tooltip of the browser.
  function markText(u, chart) {
    const near = (mark) => Math.abs(u.valToPos(place(mark), "x") - u.cursor.left);
    const there = marksOf(chart).filter((mark) => isSeen(place(mark)) && near(mark) < NEAR_MARK);
    return there.sort((a, b) => near(a) - near(b)).map((mark) => mark[3]).join("\n");
  }

  function drawMarks(u, chart) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1, shown = marksOf(chart).filter((mark) => isSeen(place(mark)));
    const free = Array(shown.length > CROWDED ? 1 : 3).fill(0);
    const colour = (mark) => css(mark[4] ? `--${mark[4]}` : "--mark");
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    for (const mark of shown) {
      const x = u.valToPos(place(mark), "x", true);
      ctx.strokeStyle = colour(mark);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    for (const mark of shown) {
      const name = mark[2], x = u.valToPos(place(mark), "x", true);
      ctx.fillStyle = colour(mark);
      const row = free.findIndex((end) => end <= x), width = ctx.measureText(name).width + 8 * ratio;
      if (row < 0 || x + width > bbox.left + bbox.width) continue;
      outlined(ctx, name, x + 3 * ratio, bbox.top + (11 + 12 * row) * ratio);
      free[row] = x + width;
    }
    ctx.restore();
  }

  function outlined(ctx, text, x, y) {
    ctx.save();
    ctx.setLineDash([]);
    ctx.lineJoin = "round";
    ctx.lineWidth = 4 * (devicePixelRatio || 1);
    ctx.strokeStyle = css("--paper");
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
    ctx.restore();
  }

  // What is said of values above and below the axis.
  function drawBeyond(u, chart) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1, { min, max } = u.scales.y;
    const [above, below] = chart.log ? [max * 1.2, min / 1.2] : [max + (max - min) / 32, min - (max - min) / 32];
    const values = (offset) => chart.curves.flatMap((curve, k) =>
      u.series[3 * k + 1].show ? inside(u, u.data[3 * k + offset]) : []);
    const most = values(3).reduce((a, b) => Math.max(a, b), -Infinity);
    const least = values(2).filter((v) => !chart.log || v > 0).reduce((a, b) => Math.min(a, b), Infinity);
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.fillStyle = css("--dim");
    const right = bbox.left + bbox.width - 3 * ratio;
    if (most > above) outlined(ctx, `▴ up to ${si(most)}`, right, bbox.top - 4 * ratio);
    if (least < below) outlined(ctx, `▾ down to ${si(least)}`, right, bbox.top + bbox.height - 5 * ratio);
    ctx.restore();
  }

  function inside(u, values) {
    return values.filter((value, i) => known(value) && isSeen(u.data[0][i]));
  }

  function drawParts(u, chart) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    for (const part of chart.parts) {
      const [start, end] = ends(part);
      if (!known(start) || !known(end)) continue;
      const x0 = u.valToPos(start, "x", true), x1 = u.valToPos(end, "x", true);
      ctx.fillStyle = ink(part[5]);
      ctx.fillRect(x0, bbox.top, Math.max(ratio, x1 - x0), bbox.height);
      ctx.fillStyle = css("--paper");
      const from = Math.max(x0, bbox.left) + 5 * ratio;
      if (ctx.measureText(part[4]).width < x1 - from - 5 * ratio)
        ctx.fillText(part[4], from, bbox.top + bbox.height / 2 + 4 * ratio);
    }
    ctx.restore();
  }

  function seriesOf(chart) {
    const x = { label: mode === TIME ? "time" : "iteration", value: (u, v) => placeText(v) };
    if (chart.kind === "strip") {
      const text = (u) => {
        const at = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
        const found = known(at) && chart.parts.find((part) => ends(part)[0] <= at && at < ends(part)[1]);
        return found ? found[4] : "–";
      };
      return [x, { label: chart.title, value: text, points: { show: false }, width: 0 }];
    }
    const hidden = { width: 0, points: { show: false }, class: "extreme" };
    const curves = chart.curves.flatMap((curve, k) => [
      {
        label: curve.label || chart.title,
        stroke: () => ink(curve.ink),
        width: 1.6,
        points: { show: true, size: 4, filter: (u, s) => isolated(u.data[s]) },
        value: (u, v, s, at) => {
          if (!known(at) || !known(v)) return "–";
          const low = u.data[s + 1][at], high = u.data[s + 2][at], unit = chart.unit ? ` ${chart.unit}` : "";
          return low === high ? si(v) + unit : `${si(v)}${unit} (${si(low)} … ${si(high)})`;
        },
      },
      { ...hidden, label: `least ${k}` },
      { ...hidden, label: `greatest ${k}` },
    ]);
    return [x, ...curves];
  }

  function seenRange(u, chart) {
    if (chart.bounds) return chart.bounds;
    const range = chart.log ? logRange : valueRange, scaled = chart.log ? powers : (values) => values;
    return range(chart.curves.flatMap((curve, k) => {
      const [middle, low, high] = [1, 2, 3].map((n) => inside(u, u.data[3 * k + n]));
      return u.series[3 * k + 1].show ? typicalRange(...[low, high, middle].map(scaled)) : [];
    }));
  }

  function zoomTo(min, max) {
    seen = [min, max];
    for (const { u } of drawn) u.setScale("x", { min, max });
  }

  function zoomToSelection(u) {
    const { left, width } = u.select;
    if (width) zoomTo(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  function optionsOf(chart, place) {
    const strip = chart.kind === "strip";
    const axis = { stroke: () => css("--dim"), grid: { stroke: () => css("--rule"), width: 1 }, ticks: { show: false } };
    const widest = (u, values) => Math.max(38, 10 + 7 * Math.max(0, ...(values || []).map((v) => v.length)));
    return {
      width: place.clientWidth,
      height: strip ? 78 : place.parentElement.classList.contains("wide") ? 300 : 210,
      padding: [18, 30, 0, 0], // room for what lies above the axis, and for half of the last label
      legend: { markers: { show: !strip } },
      series: seriesOf(chart),
      bands: strip ? [] : chart.curves.map((curve, k) => ({
        series: [3 * k + 3, 3 * k + 2], fill: () => `${ink(curve.ink)}${chart.curves.length > 3 ? "10" : "2b"}`,
      })),
      scales: {
        x: { time: false, range: () => seen },
        y: { range: (u) => strip ? [0, 1] : seenRange(u, chart), ...(chart.log ? { distr: 3 } : {}) },
      },
      axes: [
        {
          ...axis, size: 28, space: 64, ...(mode === TIME ? { incrs: STEPS } : {}),
          values: (u, splits) => splits.map(placeText),
        },
        strip ? { ...axis, size: 50, values: () => [], grid: { show: false } }
          : {
            ...axis, size: widest, space: 34, values: (u, splits) => splits.map((v) => v === null ? "" : si(v)),
            grid: { ...axis.grid, ...(chart.log ? { filter: (u, splits) => splits.map(wholePower) } : {}) },
          },
      ],
      cursor: {
        y: false,
        points: strip ? { show: false } : { size: 6 },
        drag: { x: true, y: false, setScale: false },
        sync: { key: "report", scales: ["x", null], setSeries: false,
          filters: { pub: (type) => type !== "mousedown" && type !== "mouseup" && type !== "dblclick" } },
        bind: { dblclick: () => () => { zoomTo(...full); return null; } },
      },
      hooks: {
        setSelect: [zoomToSelection],
        setCursor: [(u) => { if (!strip) u.over.title = markText(u, chart); }],
        setSeries: [(u, s, options) => {
          if (strip || !s || s % 3 !== 1 || !known(options.show)) return;
          u.setSeries(s + 1, { show: options.show }, false);
          u.setSeries(s + 2, { show: options.show }, false);
        }],
        draw: [(u) => {
          if (strip) return drawParts(u, chart);
          drawMarks(u, chart);
          drawBeyond(u, chart);
        }],
      },
    };
  }

  // The page -----------------------------------------------------------------------------------------------

  function whole() {
    const spans = page.charts.map((chart) => chart.span);
    if (mode === TIME) return [Math.min(...spans.map((s) => s[0])), Math.max(...spans.map((s) => s[1]), 1e-3)];
    let low = Infinity, high = -Infinity;
    for (const axis of page.axes) for (const i of axis.i) if (known(i)) { low = Math.min(low, i); high = Math.max(high, i); }
    return high > low ? [low, high] : [low, low + 1];
  }

  function draw() {
    for (const { u } of drawn) u.destroy();
    drawn.length = 0;
    full = seen = whole();
    page.charts.forEach((chart, n) => {
      const place = places[n], heading = document.createElement("p");
      heading.className = "heading";
      const title = document.createElement("b"), unit = document.createElement("span");
      title.textContent = chart.title;
      unit.textContent = ` ${[chart.unit, chart.log ? "log" : ""].filter(Boolean).join(" · ")}`;
      heading.append(title, unit);
      place.replaceChildren(heading);
      drawn.push({ u: new uPlot(optionsOf(chart, place), dataOf(chart), place), place });
    });
  }

  function controls() {
    const bar = document.getElementById("controls");
    const hint = document.createElement("span");
    hint.textContent = "Drag in a chart to zoom all of them. Double-click to see all again.";
    if (page.axes.some((axis) => axis.i.some(known)))
      for (const [wanted, text] of [[TIME, "by time since start"], [ITERATION, "by iteration"]]) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.setAttribute("aria-pressed", String(wanted === mode));
        button.addEventListener("click", () => {
          mode = wanted;
          for (const other of bar.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
          draw();
        });
        bar.append(button);
      }
    bar.append(hint);
  }

  const root = document.documentElement;
  root.classList.add("live-charts");
  try {
    draw();
    controls();
  } catch (error) {
    root.classList.remove("live-charts");
    throw error;
  }
  new ResizeObserver(() => {
    for (const { u, place } of drawn)
      if (place.clientWidth && place.clientWidth !== u.width) u.setSize({ width: place.clientWidth, height: u.height });
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { u } of drawn) u.redraw(false);
  });
})();
