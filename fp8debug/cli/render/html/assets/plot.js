// Lines over steps, by uPlot: bands of meaning behind them, one cursor for all plots of a group.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const HEIGHT = 210;
  const plots = new Set();

  const finite = (values) => values.map((value) => (Number.isFinite(value) ? value : null));

  /** The scale of a bound of a band: exponents for metrics read by them. */
  const place = (metric, bound) => (metric.is_log2 ? Math.log2(bound) : bound);

  const rangeOf = (metric) => (plot, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    if (metric.unit === "share") return [0, high > 0 ? high * 1.08 : (metric.bands.find((band) => band.below > 1e-9) || { below: 0.01 }).below];
    const room = Math.max((high - low) * 0.08, metric.is_log2 ? 0.5 : Math.abs(high) * 0.01, 1e-12);
    return [metric.is_log2 || metric.unit || low < 0 ? low - room : Math.max(0, low - room), high + room];
  };

  /** The bands that are in view, with their bounds. */
  const bandsInView = (plot, metric) => {
    const { min, max } = plot.scales.y;
    let from = min;
    const seen = [];
    for (const band of app.isNeutral(metric) ? [] : metric.bands) {
      const to = Math.min(max, band.below === null ? Infinity : place(metric, band.below));
      if (!(to > from)) continue;
      seen.push({ band, top: plot.valToPos(to, "y", true), bottom: plot.valToPos(from, "y", true) });
      from = to;
    }
    return seen;
  };

  const drawBands = (metric) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.globalAlpha = 0.15;
    for (const { band, top, bottom } of bandsInView(plot, metric)) {
      if (!band.severity) continue;
      ctx.fillStyle = app.colour(app.bandColour(metric, band));
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
    }
    ctx.restore();
  };

  const drawWords = (metric) => (plot) => {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "top";
    for (const { band, top, bottom } of bandsInView(plot, metric)) {
      if (bottom - top < 17 * scale) continue;
      const width = ctx.measureText(band.word).width;
      const right = bbox.left + bbox.width - 5 * scale;
      ctx.globalAlpha = 0.72;
      ctx.fillStyle = app.colour("paper");
      ctx.fillRect(right - width - 3 * scale, top + 2 * scale, width + 6 * scale, 14 * scale);
      ctx.globalAlpha = 1;
      ctx.fillStyle = app.colour("soft");
      ctx.fillText(band.word, right, top + 4 * scale);
    }
    ctx.restore();
  };

  const drawMarks = (marks) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const mark of marks) {
      const from = plot.valToPos(mark.from, "x", true);
      const to = plot.valToPos(mark.to, "x", true);
      const least = 3 * (devicePixelRatio || 1);
      ctx.globalAlpha = mark.alpha || 0.3;
      ctx.fillStyle = app.colour(mark.colour);
      ctx.fillRect(from - (to - from < least ? least / 2 : 0), bbox.top, Math.max(to - from, least), bbox.height);
    }
    ctx.restore();
  };

  const axes = (metric) => {
    const look = () => ({
      stroke: () => app.colour("soft"),
      grid: { stroke: () => app.colour("line"), width: 1 },
      ticks: { stroke: () => app.colour("line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    });
    const values = (plot, splits) =>
      splits.map((v) => (v === null ? "" : metric.is_log2 ? app.power(v) : metric.unit === "share" ? `${app.digits(v * 100, 3)} %` : app.digits(v, 4)));
    const whole = [1, 2, 4, 8, 16, 32, 64];
    const y = { ...look(), values, size: 62 };
    if (metric.is_log2) y.incrs = whole;
    return [{ ...look(), size: 30, space: 56, incrs: [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7].map((k) => n * 10 ** k)).sort((a, b) => a - b) }, y];
  };

  const seriesOf = (metric, line) => {
    const nKnown = line.values.filter((value) => value !== null).length;
    const isDots = line.isDots;
    return {
      label: line.label,
      stroke: () => app.colour(line.colour),
      width: isDots ? 0 : line.width || 1.5,
      dash: line.dash,
      spanGaps: !isDots,
      paths: isDots ? () => null : undefined,
      points: { show: isDots || nKnown < 60, size: isDots ? 8 : 4, fill: () => app.colour(line.colour), stroke: () => app.colour(line.colour) },
      value: (plot, value) => (value === null || value === undefined ? "–" : app.say(metric, value, 4)),
    };
  };

  /** Where the legend rests while nobody points at a plot: the known values next to what is marked, else the last. */
  const restingIndex = (xs, lines, marks) => {
    const known = xs.map((_, i) => i).filter((i) => lines.some((line) => line.values[i] !== null && line.values[i] !== undefined));
    if (!known.length) return null;
    if (!marks.length) return known[known.length - 1];
    const far = (i) => Math.abs(xs[i] - marks[0].from);
    return known.reduce((best, i) => (far(i) < far(best) ? i : best), known[0]);
  };

  /**
   * One plot in a figure. lines: label, values (over xs), colour, and dash, width or isDots; marks: from, to, colour.
   * metric gives unit, bands and whether values are exponents; group: plots with one cursor.
   */
  app.plot = (host, { title, caption, xs, lines, metric, marks = [], group, onclick }) => {
    const shown = lines.map((line) => ({ ...line, values: finite(line.values) }));
    const area = app.el("div", { class: "plot" });
    const figure = app.el("figure", { class: "chart" }, app.el("figcaption", {}, app.el("b", {}, ["dB", "bits"].includes(metric.unit) ? `${title}, ${metric.unit}` : title), caption ? ` ${caption}` : ""), area);
    host.append(figure);
    const options = {
      width: Math.max(220, app.printWidth ? app.printWidth / 2 - 12 : area.clientWidth),
      height: HEIGHT,
      scales: { x: { time: false }, y: { range: rangeOf(metric) } },
      axes: axes(metric),
      series: [{ label: "Step", value: (plot, step) => (step === null || step === undefined ? "–" : `${step}`) }, ...shown.map((line) => seriesOf(metric, line))],
      cursor: { sync: { key: group, setSeries: false }, y: false, points: { size: 6 } },
      legend: { markers: { width: 2 } },
      hooks: { drawClear: [drawBands(metric), drawMarks(marks)], draw: [drawWords(metric)] },
    };
    const idx = restingIndex(xs, shown, marks);
    const rest = (plot) => {
      if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx }, false);
    };
    options.hooks.setLegend = [rest];
    const plot = new uPlot(options, [xs, ...shown.map((line) => line.values)], area);
    rest(plot);
    plot.area = area;
    plot.lines = shown;
    plots.add(plot);
    if (onclick) plot.over.addEventListener("click", () => onclick(plot.posToVal(plot.cursor.left, "x"), (plot.scales.x.max - plot.scales.x.min) / 60));
    return figure;
  };

  /** Forget the plots inside a node that is filled anew. */
  app.dropPlots = (node) => {
    for (const plot of plots) {
      if (!node.contains(plot.root)) continue;
      plot.destroy();
      plots.delete(plot);
    }
  };

  app.resizePlots = () => {
    for (const plot of plots) {
      const width = app.printWidth ? Math.floor(app.printWidth / 2) - 12 : plot.area.clientWidth;
      if (width > 0) plot.setSize({ width: Math.max(220, width), height: HEIGHT });
    }
  };

  app.redrawPlots = () => {
    for (const plot of plots) {
      plot.redraw(false, true); // with axes: their labels depend on the size
      plot.root.querySelectorAll(".u-series .u-marker").forEach((marker, i) => {
        if (i) marker.style.borderColor = app.colour(plot.lines[i - 1].colour);
      });
    }
  };
})();
