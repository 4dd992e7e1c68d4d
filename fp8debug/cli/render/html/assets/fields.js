// A field is what one heatmap shows: an entry of its legend for each layer and column, and the value behind it.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const NONE = 255;

  /** Which band a stored value falls into. */
  app.bandIndex = (metric, value) => {
    const plain = metric.is_log2 ? 2 ** value : value;
    const found = metric.bands.findIndex((band) => band.below === null || plain < band.below);
    return found < 0 ? metric.bands.length - 1 : found;
  };

  app.bandOf = (metric, value) => (Number.isNaN(value) ? null : metric.bands[app.bandIndex(metric, value)]);

  const NOTHING_BELOW = 1e-30; // a bound that only zero is under

  const range = (metric, below, from) => {
    if (from === undefined && below !== null && (below < NOTHING_BELOW || (metric.unit === "elements" && below === 1)) && below > 0) return "0";
    if (from < NOTHING_BELOW && from > 0) return `up to ${app.sayBound(metric, below)}`;
    if (below === null || below === undefined) return from === undefined ? "any" : `≥ ${app.sayBound(metric, from)}`;
    if (from === undefined) return `< ${app.sayBound(metric, below)}`;
    return `${app.sayBound(metric, from)} to ${app.sayBound(metric, below)}`;
  };

  const entriesOf = (metric) => {
    const entries = metric.bands.map((band, i) => ({
      colour: app.bandColour(metric, band),
      range: range(metric, band.below, i ? metric.bands[i - 1].below : undefined),
      word: app.isNeutral(metric) && metric.bands.length > 1 ? "" : band.word, // a scale says nothing but its ranges
      severity: app.isNeutral(metric) ? i : band.severity,
    }));
    if (metric.unit !== "dB") entries.push({ colour: "infinite", range: "NaN or Inf", word: "not finite", severity: 99, isRare: true });
    return entries;
  };

  /** The field of one plane; plane may be missing: then nothing is known anywhere. */
  app.planeField = (run, metric, plane) => {
    const [nRows, nCols] = [run.layers.length, run.first_steps.length];
    const entries = entriesOf(metric);
    const at = new Uint8Array(nRows * nCols).fill(NONE);
    if (!plane) return { nRows, nCols, entries, at, value: () => NaN };
    const codes = app.codes(run, plane);
    const table = new Map();
    const lookUp = (code) => {
      const value = app.fromCode(plane, code);
      if (Number.isNaN(value)) return NONE;
      return value === Infinity && metric.unit !== "dB" ? entries.length - 1 : app.bandIndex(metric, value);
    };
    const known = new Uint8Array(65536).fill(254);
    for (let i = 0; i < codes.length; i++) {
      const code = codes[i];
      if (known[code] === 254) known[code] = lookUp(code);
      at[i] = known[code];
    }
    return { nRows, nCols, entries, at, value: (row, col) => app.fromCode(plane, codes[row * nCols + col]) };
  };

  const CHANGES = { share: [0.001, 0.01, 0.05, 0.2], dB: [0.5, 2, 6, 12], bits: [0.25, 1, 2, 4], elements: [1, 10, 100, 1000] };

  const changeEntries = (metric) => {
    const unit = metric.is_log2 ? "bits" : metric.unit;
    const bounds = CHANGES[unit] || [0.01, 0.05, 0.2, 1];
    const say = (bound) => app.sayBound({ unit, is_log2: false }, bound);
    const side = (name, word) =>
      bounds.map((bound, i) => ({
        colour: `${name}-${i + 1}`,
        range: i + 1 < bounds.length ? `${say(bound)} to ${say(bounds[i + 1])}` : `${say(bound)} or more`,
        word,
        severity: i + 1,
      }));
    const same = { colour: "same", range: `within ${say(bounds[0])}`, word: "the same", severity: 0 };
    return { bounds, entries: [...side("less", "lower").reverse(), same, ...side("more", "higher")] };
  };

  /** The second field less the first, in the unit of the metric (bits for one read by its exponent). */
  app.differenceField = (metric, first, second) => {
    const { bounds, entries } = changeEntries(metric);
    const { nRows, nCols } = first;
    const value = (row, col) => {
      const [before, after] = [first.value(row, col), second.value(row, col)];
      return before === after ? 0 : after - before;
    };
    const at = new Uint8Array(nRows * nCols).fill(NONE);
    for (let row = 0, i = 0; row < nRows; row++) {
      for (let col = 0; col < nCols; col++, i++) {
        const change = value(row, col);
        if (Number.isNaN(change)) continue;
        const steps = bounds.filter((bound) => Math.abs(change) >= bound).length;
        at[i] = bounds.length + Math.sign(change) * steps;
      }
    }
    return { nRows, nCols, entries, at, value, isDifference: true };
  };

  app.differenceMetric = (metric) => ({ ...metric, unit: metric.is_log2 ? "bits" : metric.unit, is_log2: false, bands: [] });

  app.entryAt = (field, row, col) => field.entries[field.at[row * field.nCols + col]] || null;

  /** Columns in which any of the fields knows anything: sampled metrics have many that say nothing. */
  app.knownColumns = (fields) => {
    const nCols = fields[0].nCols;
    const isKnown = new Uint8Array(nCols);
    for (const field of fields) {
      for (let i = 0, col = 0; i < field.at.length; i++, col++) {
        if (col === nCols) col = 0;
        if (field.at[i] !== NONE) isKnown[col] = 1;
      }
    }
    const columns = Array.from(isKnown.keys()).filter((col) => isKnown[col]);
    return columns.length ? columns : Array.from(isKnown.keys());
  };

  /** One picture element for each cell of rows x columns; where columns outnumber `width`, the worst of neighbours. */
  app.picture = (field, rows, columns, width) => {
    const n = Math.max(1, Math.min(columns.length, width));
    const image = new ImageData(n, Math.max(1, rows.length));
    const pixels = new Uint32Array(image.data.buffer);
    const colours = Uint32Array.from(field.entries, (entry) => app.pixel(entry.colour));
    const severity = Int8Array.from(field.entries, (entry) => entry.severity);
    const starts = Array.from({ length: n + 1 }, (_, i) => Math.floor((i * columns.length) / n));
    rows.forEach((row, y) => {
      for (let x = 0; x < n; x++) {
        let worst = NONE;
        for (let c = starts[x]; c < starts[x + 1]; c++) {
          const entry = field.at[row * field.nCols + columns[c]];
          if (entry !== NONE && (worst === NONE || severity[entry] > severity[worst])) worst = entry;
        }
        if (worst !== NONE) pixels[y * n + x] = colours[worst];
      }
    });
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };
})();
