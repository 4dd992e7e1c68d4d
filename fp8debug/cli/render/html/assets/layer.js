// The page of one tensor of one layer: every metric over steps, its distribution, and the numbers as a table.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
  const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];
  let mount = null;

  const several = () => app.page.runs.length > 1;

  const look = (runIndex, index) =>
    several() ? { colour: COLOURS[runIndex % 6], dash: DASHES[index % 4] } : { colour: COLOURS[index % 6], dash: DASHES[Math.floor(index / 6) % 4] };

  const label = (run, ...parts) => [several() ? run.name : "", ...parts].filter(Boolean).join(" ");

  /** Lines of a metric for a layer: its own tensor, or every GEMM of the layer. */
  const linesOf = (metric, tensor, row) => {
    const lines = [];
    app.page.runs.forEach((run, runIndex) => {
      const planes = run.planes.filter((plane) => plane.metric === metric.name && (plane.operand === tensor || app.GEMMS[plane.operand]));
      planes.forEach((plane, index) => {
        const values = app.row(run, plane, row);
        if (!values.some((value) => !Number.isNaN(value))) return;
        const name = label(run, plane.operand === tensor ? "" : plane.operand, app.recipeName(plane)) || metric.title;
        lines.push({ label: name, values, plane, run, ...look(runIndex, index) });
      });
    });
    return lines;
  };

  const isAmax = (metric) => metric.name === "amax";
  const gapMetric = () => app.page.metrics.find((metric) => metric.unit === "bits" && /gap/.test(metric.name));

  /** The largest magnitude with the largest value that fits: what the gap in bits leaves of it. */
  const amaxLines = (metric, tensor, row) => {
    const lines = linesOf(metric, tensor, row);
    const gap = gapMetric();
    if (!gap) return lines;
    const limits = [];
    app.page.runs.forEach((run, runIndex) => {
      const amax = lines.find((line) => line.run === run);
      if (!amax) return;
      amax.label = label(run, "largest magnitude, all of which current scaling holds");
      const gaps = run.planes.filter((plane) => plane.metric === gap.name && plane.operand === tensor && plane.recipe !== "current");
      gaps.forEach((plane, index) => {
        const bits = app.row(run, plane, row);
        const values = amax.values.map((value, i) => value - bits[i]);
        if (!values.some(Number.isFinite)) return;
        const name = app.recipeName(plane);
        limits.push({ label: label(run, `${name} holds up to`), values, plane, run, ...look(runIndex, index + 1) });
        const clipped = amax.values.map((value, i) => (bits[i] > 0 ? value : NaN));
        if (clipped.some(Number.isFinite)) limits.push({ label: label(run, `beyond what ${name} holds`), values: clipped, plane, run, colour: "warm-3", isDots: true });
      });
    });
    return [...lines, ...limits];
  };

  const stepMark = () => {
    const { step } = app.state;
    return step === null || step === undefined ? [] : [{ from: step, to: step, colour: "choice", alpha: 0.5 }];
  };

  /** The most telling of values: by band, then the largest (or the smallest where small is bad, or either for two sides). */
  const worstOf = (metric, values) => {
    const severity = (value) => (metric.bands.length && !Number.isNaN(value) ? app.bandOf(metric, value).severity : 0);
    const isTwoSided = metric.bands.some((band) => band.side < 0) && metric.bands.some((band) => band.side > 0);
    const isLowBad = metric.bands.length > 1 && metric.bands[0].severity > metric.bands[metric.bands.length - 1].severity;
    const size = (value) => (isTwoSided && !metric.is_log2 ? Math.abs(value) : isLowBad ? -value : value);
    let best = -1;
    values.forEach((value, i) => {
      if (Number.isNaN(value)) return;
      const isWorse = best < 0 || severity(value) > severity(values[best]) || (severity(value) === severity(values[best]) && size(value) > size(values[best]));
      if (isWorse) best = i;
    });
    return best;
  };

  const table = (rows) => {
    const head = ["Metric", "Of", "First", "Worst", "At step", "Last"];
    const body = rows.map(({ metric, line, run }) => {
      const known = [...line.values.keys()].filter((i) => !Number.isNaN(line.values[i]));
      const worst = worstOf(metric, line.values);
      const say = (i) => app.say(metric, line.values[i], 3);
      const band = app.bandOf(metric, line.values[worst]);
      const cells = [line.label === metric.title ? "" : line.label, say(known[0]), `${say(worst)}${band && !app.isNeutral(metric) ? ` (${band.word})` : ""}`, app.stepsOf(run, worst), say(known[known.length - 1])];
      return app.el("tr", {}, app.el("th", { scope: "row" }, metric.title), ...cells.map((text) => app.el("td", {}, text)));
    });
    const header = app.el("tr", {}, ...head.map((text) => app.el("th", { scope: "col" }, text)));
    const whole = app.el("table", { class: "summary" }, app.el("caption", {}, "First, worst and last value"), app.el("thead", {}, header), app.el("tbody", {}, ...body));
    return app.el("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "First, worst and last value" }, whole);
  };

  const tabs = (layer, tensor) => {
    const operands = app.unique(app.page.runs.flatMap((run) => run.planes.map((plane) => app.tensorOf(plane.operand))));
    const links = operands.map((name) => {
      const current = name === tensor ? "page" : null;
      return app.el("a", { href: app.address({ layer, tensor: name, step: app.state.step, metric: app.state.metric }), "aria-current": current }, name);
    });
    return app.el("nav", { class: "tabs", "aria-label": "Tensor" }, ...links);
  };

  const neighbours = (row) => {
    const { layers } = app.page.runs[0];
    const link = (at, text) => {
      if (at < 0 || at >= layers.length) return null;
      return app.el("a", { href: app.address({ layer: layers[at], tensor: app.state.tensor, step: app.state.step, metric: app.state.metric }), title: layers[at] }, text);
    };
    return app.el("nav", { class: "neighbours", "aria-label": "Layers beside this one" }, link(row - 1, "‹ previous layer"), link(row + 1, "next layer ›"));
  };

  app.startLayer = (node) => {
    mount = node;
    mount.replaceChildren(app.el("p", { class: "note" }, "Choose a cell of the heatmap, or a link of a finding, to see one layer here."));
  };

  /** Fill the mount with the layer and tensor of the state. */
  app.showLayer = () => {
    const { layer, tensor, step } = app.state;
    const row = app.indexOfLayer(layer);
    app.dropPlots(mount);
    if (row < 0) {
      mount.replaceChildren(app.el("p", { class: "note" }, "This page holds nothing of the layer ", app.el("code", {}, layer), "."));
      return;
    }
    const title = app.el("h3", { tabindex: "-1", id: "layer-title", title: layer }, layer);
    const charts = app.el("div", { class: "charts" });
    const spread = app.el("div", {});
    const where = step === null || step === undefined ? null : app.el("p", { class: "note" }, `Step ${step} is marked.`);
    mount.replaceChildren(app.el("div", { class: "layer-head" }, title, neighbours(row)), tabs(layer, tensor), ...[where].filter(Boolean), charts, spread);
    const rows = [];
    const xs = app.page.runs[0].first_steps;
    const metrics = [...app.page.metrics].sort((a, b) => isAmax(b) - isAmax(a));
    const missing = [];
    for (const metric of metrics) {
      const lines = isAmax(metric) ? amaxLines(metric, tensor, row) : linesOf(metric, tensor, row);
      if (!lines.length) {
        if (app.planesOf(metric.name, tensor).length) missing.push(metric.title);
        continue;
      }
      const ways = lines.map((line) => app.metricOf(line.plane));
      const isOne = !isAmax(metric) && ways.every((way) => JSON.stringify(way.bands) === JSON.stringify(ways[0].bands));
      const bands = { ...metric, bands: isOne ? ways[0].bands : [] }; // lines of several formats have no common bands
      const figure = app.plot(charts, { title: metric.title, caption: metric.meaning, xs, lines, metric: bands, marks: stepMark(), group: "layer" });
      const sql = app.sqlDetails(lines.map((line) => ({ title: line.label, sql: line.plane.sql })));
      if (sql) figure.append(sql);
      rows.push(...lines.filter((line) => line.plane.metric === metric.name && !line.isDots).map((line) => ({ metric: app.metricOf(line.plane), line, run: line.run })));
    }
    if (missing.length) charts.after(app.el("p", { class: "note" }, `Nothing recorded here of: ${missing.join(", ")}.`));
    for (const run of app.page.runs) app.showDistribution(spread, run, layer, tensor, step, several() ? run.name : "");
    if (rows.length) mount.append(table(rows));
    app.addCopyButtons(mount);
  };
})();
