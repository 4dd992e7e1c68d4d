// What is under the pointer or the cursor, in words.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  let box = null;

  const part = (name) => app.el("span", { "data-field": name });

  app.startTooltip = () => {
    const parts = { layer: part("layer"), metric: part("metric"), value: part("value"), band: part("band"), step: part("step") };
    box = app.el("div", { id: "tooltip", hidden: true }, parts.layer);
    box.append(app.el("span", { class: "row" }, parts.metric, " ", parts.value));
    box.append(parts.band, app.el("span", { class: "row" }, app.el("span", { class: "when" }), " ", parts.step));
    box.parts = parts;
    document.body.append(box);
  };

  /** Everything that is said of one cell. */
  app.describe = (panel, row, col) => {
    const { run, field } = panel;
    const entry = app.entryAt(field, row, col);
    const value = field.value(row, col);
    const isOne = run.first_steps[col] === run.last_steps[col];
    let said = app.say(panel.metric, value);
    if (field.isDifference && value > 0 && !said.startsWith("0 ")) said = `+${said}`;
    const operand = app.state.operand;
    return {
      layer: run.layers[row],
      metric: `${panel.metric.title}, ${operand}${panel.title ? `, ${panel.title}` : ""}:`,
      value: said,
      number: value,
      band: entry ? entry.word : "",
      when: isOne ? "Step" : "Worst of steps",
      step: app.stepsOf(run, col),
    };
  };

  app.showTooltip = (panel, row, col, x, y) => {
    const said = app.describe(panel, row, col);
    for (const [name, node] of Object.entries(box.parts)) node.textContent = said[name];
    box.parts.value.dataset.number = said.number;
    box.querySelector(".when").textContent = said.when;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
  };

  app.hideTooltip = () => {
    if (box) box.hidden = true;
  };
})();
