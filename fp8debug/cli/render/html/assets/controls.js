// The heatmap section: what is chosen, its legend, and what mouse and keys do on a panel.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const controls = {};
  let [legend, note, meaning, live, queries] = [];
  app.panels = [];

  const select = (id, label) => {
    const node = app.el("select", { id });
    return [app.el("label", { class: "field" }, app.el("span", {}, label), node), node];
  };

  const button = (text, title, onclick) => app.el("button", { type: "button", title, "aria-label": title, onclick }, text);

  const fill = (node, entries, chosen) => {
    node.replaceChildren(...entries.map(([value, text]) => app.el("option", { value, selected: value === chosen }, text)));
    node.disabled = entries.length < 2;
  };

  const buildControls = () => {
    const parts = {};
    for (const [id, label] of [["metric", "Metric"], ["operand", "Tensor or GEMM"], ["recipe", "Recipe"]]) {
      [parts[id], controls[id]] = select(id, label);
      controls[id].addEventListener("change", () => app.choose({ [id]: controls[id].value }));
    }
    const names = app.el("datalist", { id: "layer-names" });
    names.append(...app.page.runs[0].layers.map((name) => app.el("option", { value: name })));
    controls.filter = app.el("input", { id: "filter", type: "search", list: "layer-names", placeholder: "part of a name", autocomplete: "off", spellcheck: "false" });
    controls.filter.addEventListener("input", () => app.filterLayers());
    controls.filter.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && app.view.rows.length) app.openCell({ row: app.view.rows[0], col: null });
    });
    controls.reset = button("Reset", "Reset zoom", app.resetZoom);
    const zoom = app.el("div", { class: "zoom", role: "group", "aria-label": "Zoom" });
    zoom.append(button("−", "Zoom out", () => app.zoomBy(1 / 1.6, app.panels[0])), button("+", "Zoom in", () => app.zoomBy(1.6, app.panels[0])), controls.reset);
    const filter = app.el("label", { class: "field grow" }, app.el("span", {}, "Layers"), controls.filter);
    return app.el("div", { class: "controls" }, parts.metric, parts.operand, parts.recipe, filter, zoom, names);
  };

  /** Fill the mount with controls, one panel a run (and one for the difference of two), legend and notes. */
  app.buildHeatmap = (mount) => {
    const { runs } = app.page;
    app.panels = runs.map((run) => new app.Panel(runs.length > 1 ? run.name : "", run));
    if (runs.length === 2) app.panels.push(new app.Panel(`${runs[1].name} minus ${runs[0].name}`, runs[0]));
    const grid = app.el("div", { class: runs.length > 1 ? "panels many" : "panels" }, ...app.panels.map((panel) => panel.node));
    if (runs.length === 2) app.panels[2].node.classList.add("across");
    meaning = app.el("p", { class: "meaning" });
    legend = app.el("div", { class: "legends" });
    note = app.el("p", { class: "note" });
    queries = app.el("div", {});
    live = app.el("div", { class: "hidden", "aria-live": "polite", id: "announce" });
    const help = "Arrows move from cell to cell, Enter opens the layer, + and - zoom, 0 shows all. Drag over cells to zoom into them.";
    const hint = app.el("p", { class: "note keys", id: "heatmap-keys" }, help);
    mount.replaceChildren(buildControls(), meaning, legend, grid, hint, note, queries, live);
  };

  const legendOf = (field, title) => {
    const list = app.el("ul", { class: "legend" });
    const used = new Set(field.at);
    field.entries.forEach((entry, i) => {
      if (entry.isRare && !used.has(i)) return; // said only where there is one
      const swatch = app.el("span", { class: "swatch" }, entry.isRare ? "×" : "");
      swatch.style.background = app.colour(entry.colour);
      list.append(app.el("li", {}, swatch, app.el("span", {}, app.el("b", {}, entry.range), ` ${entry.word}`)));
    });
    list.append(app.el("li", {}, app.el("span", { class: "swatch none" }), app.el("span", {}, "nothing recorded")));
    return app.el("div", {}, title ? app.el("p", { class: "note" }, title) : null, list);
  };

  const fillControls = () => {
    const { state, page } = app;
    const metrics = app.shownMetrics().filter((metric) => app.planesOf(metric.name).length);
    fill(controls.metric, metrics.map((metric) => [metric.name, metric.title]), state.metric);
    const operands = app.unique(app.planesOf(state.metric).map((plane) => plane.operand));
    fill(controls.operand, operands.map((name) => [name, name]), state.operand);
    const recipes = new Map(app.planesOf(state.metric, state.operand).map((plane) => [app.recipeKey(plane), app.recipeName(plane) || "of no recipe"]));
    fill(controls.recipe, [...recipes], state.recipe);
  };

  const noteOf = (fields) => {
    const run = app.page.runs[0];
    const left = fields[0].nCols - app.view.columns.length;
    const said = [];
    if (left) said.push(`${app.plural(left, "column")} of ${app.count(fields[0].nCols)} without any value of this metric ${left === 1 ? "is" : "are"} left out.`);
    if (run.first_steps.some((step, i) => step !== run.last_steps[i])) said.push("A column is the worst of the steps that it stands for.");
    if (app.view.columns.length > app.panels[0].wholeWidth * app.panels[0].scale) said.push("Where columns are narrower than a dot, the worst of neighbours is drawn.");
    return said.join(" ");
  };

  /** Show the chosen metric, operand and recipe in all panels. */
  app.showHeatmap = () => {
    const { page, panels, state, view } = app;
    const planes = page.runs.map((run) => app.planeOf(run, state));
    const metric = app.metricOf(planes.find(Boolean));
    const fields = page.runs.map((run, i) => app.planeField(run, metric, planes[i]));
    view.columns = app.knownColumns(fields);
    if (page.runs.length === 2) fields.push(app.differenceField(metric, fields[0], fields[1]));
    panels.forEach((panel, i) => {
      panel.field = fields[i];
      panel.metric = fields[i].isDifference ? app.differenceMetric(metric) : metric;
      panel.canvas.setAttribute("aria-label", `${metric.title} of ${state.operand}${panel.title ? `, ${panel.title}` : ""}: layers by steps`);
    });
    if (view.cursor && !view.columns.includes(view.cursor.col)) view.cursor = { ...view.cursor, col: nearest(view.columns, view.cursor.col) };
    fillControls();
    const chosen = [metric.title, state.operand, state.recipe.split("|").filter(Boolean).join(" ")].filter(Boolean).join(", ");
    meaning.replaceChildren(app.el("b", { class: "on-paper" }, `${chosen}. `), metric.meaning);
    legend.replaceChildren(legendOf(fields[0]));
    if (fields[2] && fields[2].isDifference) legend.append(legendOf(fields[2], `Difference: ${panels[2].title}`));
    const entries = planes.map((plane, i) => ({ title: page.runs[i].name, sql: plane && plane.sql }));
    queries.replaceChildren(...[app.sqlDetails(entries)].filter(Boolean));
    app.addCopyButtons(queries);
    app.sizePanels();
    note.textContent = noteOf(fields);
    app.showZoom();
  };

  const nearest = (columns, col) =>
    columns.reduce((best, each) => (Math.abs(each - col) < Math.abs(best - col) ? each : best), columns[0]);

  app.showZoom = () => {
    controls.reset.disabled = app.view.zoomX === 1 && app.view.zoomY === 1;
  };

  /** Only rows whose name holds what was typed. */
  app.filterLayers = () => {
    const words = controls.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { layers } = app.page.runs[0];
    const rows = [...layers.keys()].filter((row) => words.every((word) => layers[row].toLowerCase().includes(word)));
    controls.filter.setAttribute("aria-invalid", rows.length ? "false" : "true");
    app.view.rows = rows.length ? rows : [...layers.keys()];
    app.view.zoomY = 1;
    app.sizePanels();
    app.showZoom();
  };

  app.focusFilter = () => controls.filter?.focus();

  app.announce = (text) => {
    live.textContent = text;
  };

  /** Put the cursor on a cell, in view, and say what it holds. */
  app.setCursor = (panel, row, col, isSaid) => {
    app.view.cursor = { row, col };
    for (const each of app.panels) each.reveal();
    app.drawPanels();
    if (!isSaid) return;
    const said = app.describe(panel, row, col);
    app.announce(`${said.layer}, ${said.when.toLowerCase()} ${said.step}: ${said.value}${said.band ? `, ${said.band}` : ""}`);
  };

  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -1e9], End: [0, 1e9] };

  const moveCursor = (panel, [down, right]) => {
    const { rows, columns, cursor } = app.view;
    const place = (list, at, by) => list[Math.max(0, Math.min(list.length - 1, Math.max(0, list.indexOf(at)) + by))];
    if (!cursor) return app.setCursor(panel, rows[0], columns[0], true);
    return app.setCursor(panel, place(rows, cursor.row, down), place(columns, cursor.col, right), true);
  };

  const onKey = (panel, event) => {
    const { cursor } = app.view;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (MOVES[event.key]) moveCursor(panel, MOVES[event.key]);
    else if (event.key === "Enter" && cursor) app.openCell(cursor);
    else if (event.key === "+" || event.key === "=") app.zoomBy(1.6, panel);
    else if (event.key === "-") app.zoomBy(1 / 1.6, panel);
    else if (event.key === "0") app.resetZoom();
    else return;
    event.preventDefault();
    if (cursor && "+=-".includes(event.key)) panel.reveal();
  };

  const drag = (panel) => {
    let start = null;
    const place = (event) => {
      const box = panel.canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const within = ({ x, y }) => ({
      x: Math.max(panel.gutter, Math.min(panel.gutter + panel.plotWidth, x)),
      y: Math.max(0, Math.min(panel.plotHeight, y)),
    });
    const { canvas } = panel;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0) start = place(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = place(event);
      if (start && event.pointerType === "mouse" && event.buttons & 1 && Math.hypot(at.x - start.x, at.y - start.y) > 6) {
        canvas.setPointerCapture(event.pointerId);
        const [from, to] = [within(start), within(at)];
        panel.dragged = { x0: Math.min(from.x, to.x), x1: Math.max(from.x, to.x), y0: Math.min(from.y, to.y), y1: Math.max(from.y, to.y) };
        app.hideTooltip();
        panel.draw();
        return;
      }
      const cell = panel.cellAt(at.x, at.y);
      canvas.style.cursor = cell ? "pointer" : "default";
      canvas.title = cell && cell.col === null ? panel.run.layers[cell.row] : "";
      if (cell && cell.col !== null) app.showTooltip(panel, cell.row, cell.col, event.clientX, event.clientY);
      else app.hideTooltip();
    });
    canvas.addEventListener("pointerup", (event) => {
      const { dragged } = panel;
      panel.dragged = null;
      const from = start;
      start = null;
      if (!from) return;
      if (!dragged) {
        const at = place(event);
        const cell = panel.cellAt(at.x, at.y);
        if (cell) app.openCell(cell);
        return;
      }
      const across = (x) => ((x - panel.gutter + panel.scrollX) / panel.wholeWidth) * app.view.columns.length;
      const down = (y) => (y + panel.scrollY) / panel.rowHeight;
      const isFlat = dragged.y1 - dragged.y0 < 1.5 * panel.rowHeight; // a stroke along the steps keeps all layers
      const rows = isFlat ? [down(0), down(panel.plotHeight)] : [Math.floor(down(dragged.y0)), Math.ceil(down(dragged.y1))];
      if (dragged.x1 - dragged.x0 > 6) app.zoomTo(Math.floor(across(dragged.x0)), Math.ceil(across(dragged.x1)), ...rows);
      else panel.draw();
    });
    canvas.addEventListener("pointercancel", () => {
      start = panel.dragged = null;
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // a plain wheel scrolls
      event.preventDefault();
      const at = place(event);
      app.zoomBy((event.deltaY || event.deltaX) < 0 ? 1.25 : 1 / 1.25, panel, at.x, at.y);
    }, { passive: false });
  };

  /** Mouse and keys of a panel. */
  app.listen = (panel) => {
    panel.canvas.addEventListener("keydown", (event) => onKey(panel, event));
    panel.canvas.addEventListener("pointerleave", app.hideTooltip);
    panel.canvas.addEventListener("blur", app.hideTooltip);
    drag(panel);
  };
})();
