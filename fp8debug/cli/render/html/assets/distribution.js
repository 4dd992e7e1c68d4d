// How the magnitudes are spread over octaves, before and after the recipe, and what each format can hold.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const [LEFT, RIGHT, BOTTOM, ROW, HEIGHT] = [56, 14, 34, 20, 300];
  const drawings = new Set();
  const wanted = { recipe: null, isLinear: false };

  const share = (n, of) => (of ? `${app.count(n)} (${app.digits((100 * n) / of, 3)} %)` : app.count(n));

  /** What a distribution says, in sentences. */
  const sentences = (d) => {
    const nonZero = d.n - d.n_zero;
    const said = [`${app.plural(d.n, "finite element")}, ${share(d.n_zero, d.n)} of them zero.`];
    if (d.recipe) {
      said.push(`After the cast ${share(d.n_zero_after - d.n_zero, nonZero)} of the others are zero, ${share(d.n_overflow, d.n)} round beyond the largest value.`);
    }
    if (d.n_nonfinite) said.push(`${app.plural(d.n_nonfinite, "element")} NaN or infinite.`);
    if (d.amax !== null) said.push(`Largest magnitude ${app.digits(d.amax, 4)}${d.amin ? `, smallest ${app.digits(d.amin, 3)}` : ""}.`);
    const format = app.page.formats.find((each) => each.name === d.fmt);
    if (d.scale && format) said.push(`${d.n_scales > 1 ? `Its records have ${app.count(d.n_scales)} different scales: that of the largest magnitude,` : "The scale"} ${app.digits(d.scale, 4)}${d.n_scales > 1 ? "," : ""} lets ${d.fmt} hold up to ${app.digits(format.largest / d.scale, 4)}.`);
    if (d.current_scale && d.scale && d.current_scale !== d.scale) said.push(`Current scaling would have ${app.digits(d.current_scale, 4)}.`);
    if (d.approx) said.push(`Counted after rounding to ${d.approx.toUpperCase()}.`);
    return said.join(" ").replace(/e-(\d)/g, "e\u2060-\u2060$1").replace(/ %/g, "\u00a0%"); // no line ends within a number
  };

  const extent = (d, formats) => {
    const used = formats.find((format) => format.name === d.fmt) || formats[0];
    const scale = d.scale || 1;
    const low = Math.min(d.octaves[0] ?? Infinity, Math.log2(used.smallest_subnormal / scale) - 1);
    const high = Math.max((d.octaves[d.octaves.length - 1] ?? -Infinity) + 1, Math.log2(used.largest / scale) + 1);
    return [Math.floor(low), Math.ceil(high)];
  };

  class Drawing {
    constructor(host, d) {
      this.d = d;
      this.host = host;
      this.canvas = app.el("canvas", { class: "distribution", role: "img", "aria-label": `Elements by octave, ${d.tensor} of ${d.layer} at step ${d.step}. ${sentences(d)}` });
      this.readout = app.el("p", { class: "note readout" }, "Point at a bar for its numbers.");
      host.append(this.canvas, this.readout);
      this.canvas.addEventListener("pointermove", (event) => this.read(event.offsetX));
      drawings.add(this);
    }

    read(offset) {
      const { d } = this;
      const octave = Math.floor(this.low + ((offset - LEFT) / this.inner) * (this.high - this.low));
      const at = d.octaves.indexOf(octave);
      const after = at >= 0 && d.after.length ? `, ${app.count(d.after[at])} after` : "";
      this.readout.textContent = `Magnitudes from ${app.power(octave)} to ${app.power(octave + 1)}: ${at >= 0 ? app.count(d.before[at]) : "0"} before${after}.`;
    }

    draw() {
      const { formats } = app.page;
      const { d } = this;
      const width = Math.max(260, app.printWidth || this.host.clientWidth);
      const height = HEIGHT + ROW * formats.length;
      const scale = app.printWidth ? 3 : devicePixelRatio || 1;
      Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      [this.low, this.high] = extent(d, formats);
      this.inner = width - LEFT - RIGHT;
      const limits = this.limits();
      this.top = ROW * formats.length + 8 + 14 * (limits.length ? Math.max(...limits.map((limit) => limit.line)) + 1 : 0);
      this.bottom = height - BOTTOM;
      const most = Math.max(1, ...d.before, ...d.after);
      this.most = wanted.isLinear ? most * 1.05 : Math.ceil(Math.log10(most) + 0.02);
      const ink = this.canvas.getContext("2d");
      ink.setTransform(scale, 0, 0, scale, 0, 0);
      ink.fillStyle = app.colour("paper");
      ink.fillRect(0, 0, width, height);
      ink.font = "11px system-ui, sans-serif";
      this.drawOutside(ink);
      this.drawCounts(ink);
      this.drawBars(ink);
      formats.forEach((format, row) => this.drawFormat(ink, format, row));
      ink.fillStyle = app.colour("ink");
      ink.textAlign = "left";
      ink.textBaseline = "top";
      for (const limit of limits) ink.fillText(limit.text, limit.left, ROW * formats.length + 6 + 14 * limit.line);
      this.drawOctaves(ink, width, height);
    }

    x(exponent) {
      return LEFT + ((Math.max(this.low, Math.min(this.high, exponent)) - this.low) / (this.high - this.low)) * this.inner;
    }

    y(count) {
      const size = wanted.isLinear ? count : Math.log10(Math.max(count, 0.7));
      const floor = wanted.isLinear ? 0 : Math.log10(0.7);
      return this.bottom - ((size - floor) / (this.most - floor)) * (this.bottom - this.top);
    }

    /** Shade what the format in use cannot hold. */
    drawOutside(ink) {
      const format = app.page.formats.find((each) => each.name === this.d.fmt);
      if (!format) return;
      const scale = this.d.scale || 1;
      ink.fillStyle = app.colour("outside");
      const least = this.x(Math.log2(format.smallest_subnormal / scale) - 1); // half of it rounds to zero
      const largest = this.x(Math.log2(format.largest / scale));
      ink.fillRect(LEFT, this.top, least - LEFT, this.bottom - this.top);
      ink.fillRect(largest, this.top, LEFT + this.inner - largest, this.bottom - this.top);
    }

    drawCounts(ink) {
      ink.textAlign = "right";
      ink.textBaseline = "middle";
      const ticks = wanted.isLinear ? [0.25, 0.5, 0.75, 1].map((part) => part * this.most) : Array.from({ length: this.most + 1 }, (_, i) => 10 ** i);
      const every = Math.ceil(ticks.length / 8);
      ticks.forEach((count, i) => {
        if (i % every) return;
        const y = Math.round(this.y(count)) + 0.5;
        ink.fillStyle = app.colour("line");
        ink.fillRect(LEFT, y, this.inner, 1);
        ink.fillStyle = app.colour("soft");
        ink.fillText(count >= 1e3 ? app.digits(count, 2).replace(/,000,000$/, " M").replace(/,000$/, " k") : app.count(Math.round(count)), LEFT - 6, y);
      });
    }

    drawBars(ink) {
      const { d } = this;
      ink.fillStyle = app.colour("before");
      d.octaves.forEach((octave, i) => {
        if (!d.before[i]) return;
        const x = this.x(octave) + 0.5;
        ink.fillRect(x, this.y(d.before[i]), this.x(octave + 1) - x - 0.5, this.bottom - this.y(d.before[i]));
      });
      if (!d.after.length) return;
      ink.strokeStyle = app.colour("after");
      ink.lineWidth = 2;
      ink.beginPath();
      ink.moveTo(this.x(d.octaves[0]), this.bottom);
      d.octaves.forEach((octave, i) => {
        const y = d.after[i] ? this.y(d.after[i]) : this.bottom;
        ink.lineTo(this.x(octave), y);
        ink.lineTo(this.x(octave + 1), y);
      });
      ink.lineTo(this.x(d.octaves[d.octaves.length - 1] + 1), this.bottom);
      ink.stroke();
    }

    /** A bar above the plot: full where normal, pale where subnormal; lines down from the format in use. */
    drawFormat(ink, format, row) {
      const scale = this.d.scale || 1;
      const isUsed = format.name === this.d.fmt;
      const [least, normal, largest] = [format.smallest_subnormal, format.smallest_normal, format.largest].map((value) => Math.log2(value / scale));
      const y = row * ROW + 4;
      const [a, b, c] = [least, normal, largest].map((exponent) => this.x(exponent));
      ink.fillStyle = app.colour(isUsed ? "range" : "range-soft");
      ink.globalAlpha = 0.45;
      ink.fillRect(a, y + 3, b - a, 7);
      ink.globalAlpha = 1;
      ink.fillRect(b, y + 3, c - b, 7);
      ink.fillStyle = app.colour("ink");
      ink.textBaseline = "middle";
      ink.textAlign = "right";
      ink.font = `${isUsed ? "bold " : ""}11px system-ui, sans-serif`;
      ink.fillText(format.name, LEFT - 6, y + 7);
      ink.font = "11px system-ui, sans-serif";
      if (!isUsed) return this.drawEnds(ink, least, largest, y);
      ink.strokeStyle = app.colour("range");
      ink.lineWidth = 1;
      for (const [x, dash] of [[a, [2, 3]], [b, [5, 3]], [c, []]]) {
        ink.setLineDash(dash);
        ink.beginPath();
        ink.moveTo(Math.round(x) + 0.5, y + 3);
        ink.lineTo(Math.round(x) + 0.5, this.bottom);
        ink.stroke();
      }
      ink.setLineDash([]);
      return null;
    }

    /** Arrows where a format goes on beyond the plot. */
    drawEnds(ink, least, largest, y) {
      ink.fillStyle = app.colour("ink");
      if (largest > this.high) {
        ink.textAlign = "right";
        ink.fillText("›", LEFT + this.inner + 8, y + 6);
      }
      if (least < this.low) {
        ink.textAlign = "left";
        ink.fillText("‹", LEFT + 1, y + 6);
      }
    }

    /** The limits of the format in use in words, each on the first line where it does not meet another. */
    limits() {
      const format = app.page.formats.find((each) => each.name === this.d.fmt);
      if (!format) return [];
      const ink = this.canvas.getContext("2d");
      ink.font = "11px system-ui, sans-serif";
      const ends = [];
      return [["smallest", format.smallest_subnormal], ["normal from", format.smallest_normal], ["largest", format.largest]].map(([name, limit]) => {
        const value = limit / (this.d.scale || 1);
        const text = `${name} ${app.digits(value, 4)}`;
        const width = ink.measureText(text).width;
        const left = Math.max(LEFT, Math.min(LEFT + this.inner - width, this.x(Math.log2(value)) - width / 2));
        let line = ends.findIndex((end) => end + 10 < left);
        if (line < 0) line = ends.length;
        ends[line] = left + width;
        return { text, left, line };
      });
    }

    drawOctaves(ink, width, height) {
      const every = Math.max(1, Math.ceil(34 / (this.inner / (this.high - this.low))));
      ink.fillStyle = app.colour("soft");
      ink.textAlign = "center";
      ink.textBaseline = "top";
      for (let octave = Math.ceil(this.low / every) * every; octave <= this.high; octave += every) {
        ink.fillText(app.power(octave), this.x(octave), this.bottom + 5);
      }
      ink.fillText("magnitude", LEFT + this.inner / 2, height - 14);
      ink.fillStyle = app.colour("line-strong");
      ink.fillRect(LEFT, this.bottom, this.inner, 1);
    }
  }

  const numbers = (d) => {
    const head = app.el("tr", {}, ...["Magnitudes", "Before", d.recipe ? "After" : null].filter(Boolean).map((name) => app.el("th", { scope: "col" }, name)));
    const body = app.el("tbody", {});
    d.octaves.forEach((octave, i) => {
      const cells = [app.el("th", { scope: "row" }, `${app.power(octave)} to ${app.power(octave + 1)}`), app.el("td", {}, app.count(d.before[i]))];
      if (d.after.length) cells.push(app.el("td", {}, app.count(d.after[i])));
      body.append(app.el("tr", {}, ...cells));
    });
    return app.el("details", { class: "numbers" }, app.el("summary", {}, "Numbers"), app.el("table", {}, app.el("thead", {}, head), body));
  };

  const key = (d) => {
    const item = (name, text) => app.el("span", { class: "item" }, app.el("span", { class: `mark ${name}` }), text);
    const entries = [item("before", "before the cast")];
    if (d.after.length) entries.push(item("after", `after ${[d.recipe, d.fmt].filter(Boolean).join(" ")}`));
    if (d.fmt) entries.push(item("outside", `beyond what ${d.fmt} holds`));
    const ranges = d.scale ? `Bars above the plot: what each format holds at the scale ${app.digits(d.scale, 4)}, pale where subnormal.` : "Bars above the plot: what each format holds unscaled, pale where subnormal.";
    return app.el("p", { class: "note key" }, ...entries, app.el("span", {}, ranges));
  };

  const chooser = (kept, chosen, change) => {
    const steps = app.unique(kept.map((d) => d.step)).sort((a, b) => a - b);
    const recipes = app.unique(kept.filter((d) => d.step === chosen.step).map((d) => [d.recipe, d.fmt].filter(Boolean).join(" ")));
    const step = app.el("select", { class: "dist-step" }, ...steps.map((each) => app.el("option", { value: each, selected: each === chosen.step }, `${each}`)));
    step.addEventListener("change", () => change({ step: Number(step.value) }));
    const recipe = app.el("select", { class: "dist-recipe" }, ...recipes.map((name) => app.el("option", { value: name, selected: name === [chosen.recipe, chosen.fmt].filter(Boolean).join(" ") }, name || "none")));
    recipe.addEventListener("change", () => change({ recipe: recipe.value }));
    recipe.disabled = recipes.length < 2;
    const scale = app.el("select", {}, app.el("option", { value: "log" }, "logarithmic"), app.el("option", { value: "linear", selected: wanted.isLinear }, "linear"));
    scale.addEventListener("change", () => change({ isLinear: scale.value === "linear" }));
    const field = (label, node) => app.el("label", { class: "field" }, app.el("span", {}, label), node);
    return app.el("div", { class: "controls" }, field("Step", step), field("Recipe", recipe), field("Counts", scale));
  };

  /** The distribution of one tensor of a run nearest to a step; nothing kept of it: a sentence. */
  app.showDistribution = (host, run, layer, tensor, step, title) => {
    const kept = run.distributions.filter((d) => d.layer === layer && d.tensor === tensor);
    const figure = app.el("figure", { class: "chart whole" }, app.el("figcaption", {}, app.el("b", {}, `Distribution of magnitudes${title ? `, ${title}` : ""}`)));
    host.append(figure);
    if (!kept.length) {
      figure.append(app.el("p", { class: "note" }, `The page holds no distribution of ${tensor} of this layer.`));
      return;
    }
    const body = app.el("div", {});
    figure.append(body);
    const show = (step) => {
      const distance = (d) => (step === null || step === undefined ? -d.step : Math.abs(d.step - step));
      const nearest = kept.reduce((best, d) => (distance(d) < distance(best) ? d : best), kept[0]).step;
      const there = kept.filter((d) => d.step === nearest);
      const name = (d) => [d.recipe, d.fmt].filter(Boolean).join(" ");
      const [recipe, format] = app.state.recipe.split("|");
      const chosen = there.find((d) => name(d) === wanted.recipe) || there.find((d) => d.recipe === recipe && d.fmt === format) || there.find((d) => d.recipe === recipe) || there[0];
      for (const drawing of drawings) if (!drawing.host.isConnected || drawing.host === body) drawings.delete(drawing);
      const change = (choice) => {
        if (choice.recipe !== undefined) wanted.recipe = choice.recipe;
        if (choice.isLinear !== undefined) wanted.isLinear = choice.isLinear;
        const focused = [...body.querySelectorAll("select")].indexOf(document.activeElement);
        show(choice.step === undefined ? nearest : choice.step);
        body.querySelectorAll("select")[focused]?.focus();
      };
      const isOther = step !== null && step !== undefined && step !== nearest;
      body.replaceChildren(chooser(kept, chosen, change));
      if (isOther) body.append(app.el("p", { class: "note said" }, `No distribution was kept at step ${step}: this is step ${nearest}, the nearest that was.`));
      body.append(app.el("p", {}, sentences(chosen)), key(chosen));
      const drawing = new Drawing(body, chosen);
      body.append(numbers(chosen), ...[app.sqlDetails([{ title: "Distribution", sql: chosen.sql }])].filter(Boolean));
      app.addCopyButtons(body);
      drawing.draw();
    };
    show(step);
  };

  app.redrawDistributions = () => {
    for (const drawing of drawings) {
      if (drawing.canvas.isConnected) drawing.draw();
      else drawings.delete(drawing);
    }
  };
})();
