// What is being looked at, and the address that says it.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});

  /** metric, operand, recipe (with its format) of the heatmap; layer, tensor, step of the layer page. */
  app.state = { metric: null, operand: null, recipe: "", layer: null, tensor: null, step: null };

  app.recipeKey = (plane) => `${plane.recipe || ""}|${plane.fmt || ""}`;

  app.planesOf = (metric, operand) =>
    app.page.runs.flatMap((run) => run.planes).filter((plane) => plane.metric === metric && (!operand || plane.operand === operand));

  /** Metrics to look at: how far a scale reaches is drawn beside the amax alone. */
  app.shownMetrics = () => app.page.metrics.filter((metric) => metric.name !== "largest_held");

  app.unique = (values) => [...new Set(values)];

  app.planeOf = (run, { metric, operand, recipe }) =>
    run.planes.find((plane) => plane.metric === metric && plane.operand === operand && app.recipeKey(plane) === recipe);

  /** Make operand and recipe ones that the metric has, as close to the wanted ones as there are. */
  app.settle = (wanted) => {
    const state = { ...app.state, ...wanted };
    if (!app.metric(state.metric)) state.metric = app.state.metric || app.shownMetrics()[0].name;
    const operands = app.unique(app.planesOf(state.metric).map((plane) => plane.operand));
    const gemms = Object.keys(app.GEMMS).filter((gemm) => app.GEMMS[gemm] === state.operand);
    state.operand = [state.operand, app.tensorOf(state.operand), ...gemms].find((name) => operands.includes(name)) || operands[0];
    const recipes = app.unique(app.planesOf(state.metric, state.operand).map(app.recipeKey));
    const sameRecipe = recipes.find((key) => key.split("|")[0] === state.recipe.split("|")[0]);
    if (!recipes.includes(state.recipe)) state.recipe = sameRecipe || recipes[0];
    app.state = state;
  };

  /** An address within this page. */
  app.address = ({ layer, tensor, step, metric }) => {
    const parts = { layer, tensor, step, metric };
    const said = Object.entries(parts).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `#${said.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
  };

  /** What the address asks for; null: it is no address of ours. */
  app.readAddress = () => {
    const hash = location.hash.slice(1);
    if (!/(^|&)(layer|metric)=/.test(hash)) return null;
    const parts = {};
    for (const part of hash.split("&")) {
      const [name, value = ""] = part.split(/=(.*)/s);
      try {
        parts[name] = decodeURIComponent(value);
      } catch {
        parts[name] = value;
      }
    }
    if (parts.step !== undefined) parts.step = parts.step === "" || Number.isNaN(Number(parts.step)) ? null : Number(parts.step);
    return parts;
  };

  app.indexOfLayer = (name) => app.page.runs[0].layers.indexOf(name);

  /** The column that holds a step, or the one before it. */
  app.columnOf = (run, step) => {
    let col = 0;
    while (col + 1 < run.first_steps.length && run.first_steps[col + 1] <= step) col++;
    return col;
  };
})();
