// What the training said of itself, and the tensors that moved around its spikes.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const SERIES = [
    { name: "loss", title: "Loss", unit: "" },
    { name: "grad_norm", title: "Gradient norm", unit: "" },
    { name: "lr", title: "Learning rate", unit: "", isOnDemand: true },
  ];
  let mount = null;

  const movedItem = (moved) => {
    const name = `${moved.layer} ${moved.tensor}`;
    const isSaid = moved.sentence.startsWith(name);
    const rest = isSaid ? moved.sentence.slice(name.length) : ` at step ${moved.step}: ${moved.sentence}`;
    return app.el("li", {}, app.el("a", { href: app.address(moved) }, name), rest);
  };

  const spikeItem = (spike, run, isOpen) => {
    const where = spike.first_step === spike.last_step ? `step ${spike.first_step}` : `steps ${spike.first_step} to ${spike.last_step}`;
    const name = SERIES.find((series) => series.name === spike.series);
    const title = `${name ? name.title : spike.series}, ${where}${app.page.runs.length > 1 ? `, ${run.name}` : ""}`;
    const details = app.el("details", { class: "spike", open: isOpen }, app.el("summary", {}, title), app.el("p", {}, spike.sentence));
    if (spike.moved.length) details.append(app.el("p", { class: "note" }, "Tensors that moved:"), app.el("ul", {}, ...spike.moved.map(movedItem)));
    else details.append(app.el("p", { class: "note" }, "No recorded tensor left its usual range around it."));
    details.spike = spike;
    return details;
  };

  const draw = (host, series, runs, steps, spikes) => {
    const lines = runs
      .filter((run) => run.training[series.name])
      .map((run) => {
        const byStep = new Map(run.training.steps.map((step, i) => [step, run.training[series.name][i]]));
        const values = steps.map((step) => byStep.get(step) ?? NaN);
        return { label: app.page.runs.length > 1 ? run.name : series.title, values, colour: `line-${app.page.runs.indexOf(run) + 1}`, width: runs.length > 1 && run === runs[0] ? 3.5 : 1.5 }; // the first is seen under the others
      });
    if (!lines.some((line) => line.values.some(Number.isFinite))) return;
    const mine = spikes.filter((item) => item.spike.series === series.name);
    const marks = mine.map((item) => ({ from: item.spike.first_step, to: item.spike.last_step, colour: "warm-3" }));
    const open = (step, near) => {
      const distance = ({ spike }) => Math.max(spike.first_step - step, step - spike.last_step, 0);
      const item = mine.filter((each) => distance(each) <= near).sort((a, b) => distance(a) - distance(b))[0];
      if (!item) return;
      item.open = true;
      item.querySelector("summary").focus({ preventScroll: true });
      item.scrollIntoView({ block: "nearest" });
    };
    const caption = marks.length ? "Spikes are shaded: click one for what moved." : "";
    app.plot(host, { title: series.title, caption, xs: steps, lines, metric: { ...series, bands: [], is_log2: false }, marks, group: "training", onclick: open });
  };

  /** Curves of all runs over each other, the spikes as a list, the queries. */
  app.buildTraining = (node) => {
    mount = node;
    const runs = app.page.runs.filter((run) => run.training);
    app.dropPlots(mount);
    if (!runs.length) {
      mount.replaceChildren(app.el("p", { class: "note" }, "The run has recorded neither loss nor gradient norm."));
      return;
    }
    const steps = app.unique(runs.flatMap((run) => run.training.steps)).sort((a, b) => a - b);
    const spikes = runs.flatMap((run) => run.training.spikes.map((spike) => [spike, run])).map(([spike, run], i) => spikeItem(spike, run, i === 0));
    const charts = app.el("div", { class: "charts" });
    const list = app.el("div", { class: "spikes" }, spikes.length ? null : app.el("p", { class: "note" }, "No spike of loss or gradient norm was found."), ...spikes);
    mount.replaceChildren(charts);
    SERIES.filter((series) => !series.isOnDemand).forEach((series) => draw(charts, series, runs, steps, spikes));
    for (const series of SERIES.filter((each) => each.isOnDemand && runs.some((run) => run.training[each.name]))) {
      const host = app.el("div", { class: "charts" });
      const details = app.el("details", { class: "more" }, app.el("summary", {}, series.title), host);
      details.addEventListener("toggle", () => {
        if (details.open && !host.children.length) draw(host, series, runs, steps, spikes);
      });
      mount.append(details);
    }
    const sql = app.sqlDetails(runs.map((run) => ({ title: run.name, sql: run.training.sql })));
    mount.append(list, ...[sql].filter(Boolean));
    app.addCopyButtons(mount);
  };
})();
