// Numbers and names as words, and the elements that hold them. Text goes into a page as text only.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});

  /** An element with attributes and children; strings become text. */
  app.el = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };

  /** A number in so many significant digits. */
  app.digits = (value, n) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    const rounded = Number(value.toPrecision(n));
    if (size >= 1e7 || size < 1e-4) return rounded.toExponential().replace("e+", "e");
    return rounded.toLocaleString("en-US", { maximumSignificantDigits: n });
  };

  const isNothing = (value, unit) => ["dB", "bits"].includes(unit) && Math.abs(value) < 1e-3; // rounding errors

  const withUnit = (value, unit, n) => {
    if (isNothing(value, unit)) return `0 ${unit}`;
    if (unit === "share") return `${app.digits(value * 100, n)} %`;
    const text = unit === "elements" ? Math.round(value).toLocaleString("en-US") : app.digits(value, n);
    return unit ? `${text} ${unit}` : text;
  };

  /** A stored value of a metric (log2 for those read by their exponent) with its unit. */
  app.say = (metric, value, n = 4) => {
    if (Number.isNaN(value) || value === null || value === undefined) return "nothing recorded";
    if (value === Infinity) return metric.unit === "dB" ? "no error at all" : "not finite";
    if (metric.is_log2) return value === -Infinity ? "0" : withUnit(2 ** value, metric.unit, n);
    return value === -Infinity ? "minus infinity" : withUnit(value, metric.unit, n);
  };

  /** A bound of a band, which is a value, never its exponent. */
  app.sayBound = (metric, bound) => {
    const exponent = Math.log2(bound);
    if (metric.unit === "elements") return app.count(bound);
    if (metric.is_log2 && Number.isInteger(exponent)) return app.power(exponent);
    return withUnit(bound, metric.unit, 3);
  };

  const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  app.power = (exponent) => `2${String(exponent).replace(/./g, (sign) => RAISED[sign] || sign)}`;

  app.count = (n) => Number(n).toLocaleString("en-US");

  app.plural = (n, word) => `${app.count(n)} ${word}${n === 1 ? "" : "s"}`;

  /** Steps of a column: one, or the first and the last. */
  app.stepsOf = (run, col) => {
    const [first, last] = [run.first_steps[col], run.last_steps[col]];
    return first === last ? `${first}` : `${first}-${last}`;
  };

  app.recipeName = (plane) => [plane.recipe, plane.fmt].filter(Boolean).join(" ");

  /** The beginning that more than half of the names share, up to a dot. */
  app.commonStart = (names) => {
    let start = "";
    for (;;) {
      const counts = new Map();
      for (const name of names) {
        const dot = name.startsWith(start) ? name.indexOf(".", start.length) : -1;
        if (dot >= 0) counts.set(name.slice(0, dot + 1), (counts.get(name.slice(0, dot + 1)) || 0) + 1);
      }
      const [next, n] = [...counts].sort((a, b) => b[1] - a[1])[0] || ["", 0];
      if (n * 2 <= names.length) return start;
      start = next;
    }
  };

  /** A name that fits into `width`: without the beginning that most share, then cut in the middle. */
  app.elide = (context, whole, width, start = "") => {
    if (context.measureText(whole).width <= width) return whole;
    const name = start && whole.startsWith(start) ? `…${whole.slice(start.length)}` : whole;
    if (context.measureText(name).width <= width) return name;
    let [low, high] = [1, name.length];
    const cut = (n) => `${name.slice(0, Math.floor(n / 3))}…${name.slice(name.length - Math.ceil((2 * n) / 3))}`;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (context.measureText(cut(middle)).width <= width) low = middle;
      else high = middle - 1;
    }
    return cut(low);
  };

  /** A query to copy, folded away. */
  app.sqlDetails = (entries) => {
    const seen = new Map(entries.filter((entry) => entry.sql).map((entry) => [entry.sql, entry.title]));
    if (!seen.size) return null;
    const details = app.el("details", { class: "sql" }, app.el("summary", {}, seen.size > 1 ? "Queries" : "Query"));
    for (const [sql, title] of seen) {
      if (seen.size > 1) details.append(app.el("p", { class: "note" }, title));
      details.append(app.el("pre", { class: "sql", tabindex: "0" }, sql));
    }
    return details;
  };
})();
