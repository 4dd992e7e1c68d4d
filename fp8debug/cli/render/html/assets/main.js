// Start: decode, draw the heatmap, then the rest; follow the address.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const mounts = {};

  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  /** Choose what the heatmap shows. */
  app.choose = (wanted) => {
    app.settle(wanted);
    app.showHeatmap();
    try {
      const { layer, tensor, step, metric } = app.state;
      history.replaceState(null, "", app.address({ layer, tensor, step, metric }));
    } catch {
      // Some browsers forbid it for pages from a disk; the choice is then only not in the address.
    }
  };

  const go = (hash) => {
    if (location.hash === hash) followAddress();
    else location.hash = hash;
  };

  /** Open the page of the layer of a cell. */
  app.openCell = ({ row, col }) => {
    const run = app.page.runs[0];
    const step = col === null ? app.state.step : run.first_steps[col];
    if (col !== null) app.view.cursor = { row, col };
    go(app.address({ layer: run.layers[row], tensor: app.tensorOf(app.state.operand), step, metric: app.state.metric }));
  };

  /** Back to the heatmap. */
  app.closeLayer = () => {
    app.hideTooltip();
    if (!app.panels.length) return;
    mounts.heatmap.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "nearest" });
    app.panels[0].canvas.focus({ preventScroll: true });
  };

  const placeCursor = () => {
    const { layer, step } = app.state;
    const run = app.page.runs[0];
    const row = app.indexOfLayer(layer);
    if (row < 0 || step === null || step === undefined) return;
    const col = app.columnOf(run, step);
    const { columns } = app.view;
    const near = columns.reduce((best, each) => (Math.abs(each - col) < Math.abs(best - col) ? each : best), columns[0]);
    app.view.cursor = { row, col: near };
  };

  const followAddress = (isFirst) => {
    const asked = app.readAddress();
    if (!asked || !app.panels.length) return;
    const operand = asked.tensor && app.tensorOf(app.state.operand) === asked.tensor ? app.state.operand : asked.tensor || app.state.operand;
    app.settle({
      operand,
      metric: app.metric(asked.metric) ? asked.metric : app.state.metric,
      layer: asked.layer ?? app.state.layer,
      tensor: asked.tensor || app.state.tensor || app.tensorOf(app.state.operand),
      step: asked.step ?? (asked.layer === undefined ? app.state.step : null),
    });
    placeCursor();
    app.showHeatmap();
    if (isFirst !== "first") for (const panel of app.panels) panel.reveal();
    if (!asked.layer) return;
    app.showLayer();
    (mounts.layer.closest("section") || mounts.layer).scrollIntoView({ behavior: calm() || isFirst ? "auto" : "smooth" });
    document.getElementById("layer-title")?.focus({ preventScroll: true });
  };

  /** How bad the values of one row of a plane are together. */
  const badness = (run, plane, row) => {
    const metric = app.metricOf(plane);
    return app.row(run, plane, row).reduce((sum, value) => sum + (Number.isNaN(value) ? 0 : app.bandOf(metric, value).severity ** 2), 0);
  };

  const best = (planes, score) => planes.map((plane) => [score(plane), plane]).reduce((a, b) => (b[0] > a[0] ? b : a))[1];

  const take = (plane) => app.settle({ metric: plane.metric, operand: plane.operand, recipe: app.recipeKey(plane) });

  /** Where the page begins: the first tensor that the report is about, by the metric in which it is worst; else what is known best. */
  const begin = () => {
    const { page } = app;
    const run = page.runs.find((each) => each.planes.length);
    const link = page.links.find((each) => app.indexOfLayer(each.layer) >= 0 && run.planes.some((plane) => plane.operand === each.tensor));
    if (link) {
      const row = app.indexOfLayer(link.layer);
      take(best(run.planes.filter((plane) => plane.operand === link.tensor), (plane) => badness(run, plane, row)));
      app.settle({ layer: link.layer, tensor: link.tensor, step: link.step });
      return;
    }
    const { metric, operand } = run.planes[0];
    const middle = Math.floor(run.layers.length / 2);
    const known = (plane) => app.row(run, plane, middle).filter((value) => !Number.isNaN(value)).length;
    take(best(run.planes.filter((plane) => plane.metric === metric && plane.operand === operand), known));
  };

  /** Everything again: colours or sizes have changed. */
  app.redraw = () => {
    app.forgetColours();
    if (app.panels.length) app.showHeatmap();
    app.resizePlots();
    app.redrawPlots();
    app.redrawDistributions();
  };

  const print = () => {
    const opened = [];
    addEventListener("beforeprint", () => {
      document.documentElement.dataset.print = "";
      app.printWidth = 660;
      for (const details of document.querySelectorAll("details:not([open], .sql, .numbers, .more)")) {
        details.open = true;
        opened.push(details);
      }
      app.redraw();
    });
    addEventListener("afterprint", () => {
      delete document.documentElement.dataset.print;
      app.printWidth = 0;
      while (opened.length) opened.pop().open = false;
      app.redraw();
    });
  };

  const follow = () => {
    addEventListener("hashchange", () => followAddress());
    addEventListener("scroll", app.hideTooltip, { passive: true });
    let timer = 0;
    let width = innerWidth;
    addEventListener("resize", () => {
      clearTimeout(timer);
      if (innerWidth === width) return;
      width = innerWidth;
      timer = setTimeout(app.redraw, 80);
    });
    print();
  };

  const tools = () => {
    const node = app.el("div", { class: "tools" }, app.keysButton, app.themeButton);
    (document.querySelector("header") || document.body).append(node);
  };

  const rest = () => {
    app.buildTraining(mounts.training);
    app.addCopyButtons(document);
    if (app.readAddress()) followAddress("first");
    else if (app.state.layer) app.showLayer();
    document.documentElement.dataset.complete = "1";
  };

  const fail = (error) => {
    const text = `Charts could not be drawn in this browser (${error.message}). Everything in words is on this page all the same.`;
    for (const mount of Object.values(mounts)) mount.replaceChildren(app.el("p", { class: "failed", role: "alert" }, text));
  };

  const ready = () => {
    performance.mark("fp8debug-interactive");
    document.documentElement.dataset.ready = "1";
  };

  const nothingToDraw = () => {
    for (const name of ["heatmap", "layer"]) mounts[name].replaceChildren(app.el("p", { class: "note" }, "Nothing that could be drawn here was recorded."));
    ready();
    follow();
    rest();
  };

  const start = async () => {
    for (const name of ["heatmap", "layer", "training"]) mounts[name] = document.getElementById(name) || app.el("div", {});
    try {
      app.startTheme();
      app.startKeys();
      tools();
      const text = document.getElementById("fp8debug-data");
      app.page = await app.decode(text.textContent);
      text.textContent = "";
      if (!app.page.runs.some((run) => run.planes.length)) return nothingToDraw();
      app.view.rows = [...app.page.runs[0].layers.keys()];
      app.startTooltip();
      app.buildHeatmap(mounts.heatmap);
      app.startLayer(mounts.layer);
      begin();
      const asked = app.readAddress();
      if (asked && app.metric(asked.metric)) app.settle({ metric: asked.metric, operand: asked.tensor || app.state.operand });
      app.showHeatmap();
      placeCursor();
      app.drawPanels();
      ready();
      follow();
      setTimeout(rest, 0);
    } catch (error) {
      fail(error);
    }
  };

  start();
})();
