// The page of one tensor of one layer: every metric over steps, its distribution, and the numbers as a table.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
  const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];
  let mount = null;

  const several = () => app.page.runs.length > 1;

  /** Colour of a plane, the same in all charts: of its run where there are several, else its GEMM or recipe; dashes tell the rest. */
  const look = (run, plane) => {
    const gemm = Object.keys(app.GEMMS).indexOf(plane.operand);
    const beside = app.planesOf(plane.metric, plane.operand);
    if (several()) {
      const dash = gemm < 0 ? app.unique(beside.map(app.recipeKey)).indexOf(app.recipeKey(plane)) : gemm;
      return { colour: COLOURS[app.page.runs.indexOf(run) % 6], dash: DASHES[dash % 4] };
    }
    if (gemm >= 0) return { colour: COLOURS[gemm] };
    if (!plane.recipe) return { colour: "soft" };
    const recipes = app.unique(run.planes.filter((each) => each.recipe).map((each) => each.recipe));
    const formats = app.unique(beside.filter((each) => each.recipe === plane.recipe).map((each) => each.fmt));
    return { colour: COLOURS[recipes.indexOf(plane.recipe) % 6], dash: DASHES[formats.indexOf(plane.fmt) % 4] };
  };

  const label = (run, ...parts) => [several() ? run.name : "", ...parts].filter(Boolean).join(" ");

  /** The recipe whose GEMMs are drawn: all of them would be too many lines. */
  const gemmRecipe = (metric) => {
    const recipes = app.unique(app.planesOf(metric.name).map((plane) => plane.recipe));
    return [app.state.recipe.split("|")[0], "delayed", ...recipes].find((recipe) => recipes.includes(recipe));
  };

  /** Lines of a metric for a layer: its own tensor, or every GEMM of the layer. */
  const linesOf = (metric, tensor, row) => {
    const lines = [];
    app.page.runs.forEach((run) => {
      const planes = run.planes.filter(
        (plane) => plane.metric === metric.name && (plane.operand === tensor || (app.GEMMS[plane.operand] && plane.recipe === gemmRecipe(metric))),
      );
      planes.forEach((plane) => {
        const values = app.row(run, plane, row);
        if (!values.some((value) => !Number.isNaN(value))) return;
        const name = label(run, plane.operand === tensor ? "" : plane.operand, app.recipeName(plane)) || metric.title;
        lines.push({ label: name, values, plane, run, ...look(run, plane) });
      });
    });
    return lines;
  };

  const isAmax = (metric) => metric.name === "amax";
  const gapMetric = () => app.page.metrics.find((metric) => metric.unit === "bits" && /gap/.test(metric.name));

  /** Exponents of the largest value that fits: as it is stored, or what the gap in bits leaves of the largest magnitude. */
  const limitsOf = (run, plane, row, amax) => {
    const stored = run.planes.find((each) => each.metric === "largest_held" && each.operand === plane.operand && app.recipeKey(each) === app.recipeKey(plane));
    if (stored) return { stored, values: app.row(run, stored, row) };
    const bits = app.row(run, plane, row);
    return { stored: plane, values: amax.values.map((value, i) => value - bits[i]) };
  };

  /** The largest magnitude with the largest value that fits. */
  const amaxLines = (metric, tensor, row) => {
    const lines = linesOf(metric, tensor, row);
    const gap = gapMetric();
    if (!gap) return lines;
    const limits = [];
    app.page.runs.forEach((run) => {
      const amax = lines.find((line) => line.run === run);
      if (!amax) return;
      const gaps = run.planes.filter((plane) => plane.metric === gap.name && plane.operand === tensor && plane.recipe !== "current");
      gaps.forEach((plane) => {
        const bits = app.row(run, plane, row);
        const { stored, values } = limitsOf(run, plane, row, amax);
        if (!values.some(Number.isFinite)) return;
        amax.label = label(run, "largest magnitude; current scaling holds all of it");
        const name = app.recipeName(plane);
        limits.push({ label: label(run, `${name} holds up to`), values, plane: stored, run, ...look(run, plane), dash: several() ? [6, 3] : undefined });
        const clipped = amax.values.map((value, i) => (bits[i] > 0 ? value : NaN));
        if (clipped.some(Number.isFinite)) limits.push({ label: label(run, `beyond what ${name} holds`), values: clipped, plane, run, colour: "ink", isDots: true });
      });
    });
    return [...lines, ...limits];
  };

  /** The bands that most lines have in common, and whose they are where not all have them. */
  const bandsOf = (lines) => {
    const groups = new Map();
    for (const line of lines) {
      const { bands } = app.metricOf(line.plane);
      const key = JSON.stringify(bands);
      groups.set(key, [...(groups.get(key) || []), { bands, fmt: line.plane.fmt }]);
    }
    const most = [...groups.values()].sort((a, b) => b.length - a.length)[0];
    if (most.length === lines.length) return { bands: most[0].bands, whose: "" };
    if (most.length === 1) return { bands: [], whose: "" };
    return { bands: most[0].bands, whose: ` Shaded for ${app.unique(most.map((line) => line.fmt)).join(", ")}.` };
  };

  const stepMark = () => {
    const { step } = app.state;
    return step === null || step === undefined ? [] : [{ from: step, to: step, colour: "choice", alpha: 0.5 }];
  };

  /** Where the worst of values stands, by the rule of the metric; above zero first where that means clipping. */
  const worstOf = (metric, values) => {
    const sign = metric.worst === "smallest" || (metric.worst === "clipping_first" && !values.some((value) => value > 0)) ? -1 : 1;
    let best = -1;
    values.forEach((value, i) => {
      if (!Number.isNaN(value) && (best < 0 || sign * value > sign * values[best])) best = i;
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
      const of = isAmax(metric) ? label(run) : line.label;
      const cells = [of === metric.title ? "" : of, say(known[0]), `${say(worst)}${band && !app.isNeutral(metric) ? ` (${band.word})` : ""}`, app.stepsOf(run, worst), say(known[known.length - 1])];
      return app.el("tr", {}, app.el("th", { scope: "row" }, metric.title), ...cells.map((text) => app.el("td", {}, text)));
    });
    const header = app.el("tr", {}, ...head.map((text) => app.el("th", { scope: "col" }, text)));
    const whole = app.el("table", { class: "summary" }, app.el("caption", {}, "First, worst and last value"), app.el("thead", {}, header), app.el("tbody", {}, ...body));
    return app.el("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "First, worst and last value" }, whole);
  };

  /** Tensors that anything is known of in a layer, and the one that is asked for. */
  const tensorsOf = (row, tensor) => {
    const found = new Set();
    for (const run of app.page.runs) {
      for (const plane of run.planes) {
        const name = app.tensorOf(plane.operand);
        if (!found.has(name) && (name === tensor || app.row(run, plane, row).some((value) => !Number.isNaN(value)))) found.add(name);
      }
    }
    return [...found];
  };

  const tabs = (layer, tensor, row) => {
    const operands = tensorsOf(row, tensor);
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
    mount.replaceChildren(app.el("div", { class: "layer-head" }, title, neighbours(row)), tabs(layer, tensor, row), ...[where].filter(Boolean), charts, spread);
    const rows = [];
    const xs = app.page.runs[0].first_steps;
    const metrics = app.shownMetrics().sort((a, b) => isAmax(b) - isAmax(a));
    const missing = [];
    for (const metric of metrics) {
      const lines = isAmax(metric) ? amaxLines(metric, tensor, row) : linesOf(metric, tensor, row);
      if (!lines.length) {
        if (app.planesOf(metric.name, tensor).length) missing.push(`${metric.title}: nothing recorded`);
        continue;
      }
      rows.push(...lines.filter((line) => line.plane.metric === metric.name && !line.isDots).map((line) => ({ metric: app.metricOf(line.plane), line, run: line.run })));
      if (!lines.some((line) => line.values.some(Number.isFinite))) {
        const known = lines.flatMap((line) => line.values).find((value) => !Number.isNaN(value));
        missing.push(`${metric.title}: ${app.say(metric, known)} throughout`);
        continue;
      }
      const isThinned = isAmax(metric) && app.page.runs[0].first_steps.some((first, i) => first !== app.page.runs[0].last_steps[i]);
      const { bands, whose } = isAmax(metric) ? { bands: [], whose: "" } : bandsOf(lines);
      const isGemm = lines.every((line) => app.GEMMS[line.plane.operand]);
      const nRecipes = app.unique(app.planesOf(metric.name).map((plane) => plane.recipe)).length;
      const said = isGemm && nRecipes > 1 ? `${metric.meaning} Under ${gemmRecipe(metric)}, as chosen at the heatmap.` : metric.meaning;
      const figure = app.plot(charts, { title: metric.title, caption: `${said}${whose}${isThinned ? " Of several steps in a column: the largest magnitude, and the smallest that was held." : ""}`, xs, lines, metric: { ...metric, bands }, marks: stepMark(), group: "layer" });
      const sql = app.sqlDetails(lines.map((line) => ({ title: line.label, sql: line.plane.sql })));
      if (sql) figure.append(sql);
    }
    if (missing.length) charts.after(app.el("p", { class: "note" }, `Not drawn: ${missing.join("; ")}.`));
    for (const run of app.page.runs) app.showDistribution(spread, run, layer, tensor, step, several() ? run.name : "");
    if (rows.length) mount.append(table(rows));
    app.addCopyButtons(mount);
  };
})();
