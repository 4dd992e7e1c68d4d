// The data of the page: one text, decoded once; each plane when it is first looked at.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const FIRST = 3; // code of the smallest value; 0: nothing known, 1: minus infinity, 2: plus infinity

  const fromBase64 = (text) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const words = atob(text);
    const bytes = new Uint8Array(words.length);
    for (let i = 0; i < words.length; i++) bytes[i] = words.charCodeAt(i);
    return bytes;
  };

  /** The document and the bytes of its planes, from the text that the page holds. */
  app.decode = async (text) => {
    if (typeof DecompressionStream === "undefined") throw new Error("it has no DecompressionStream");
    const packed = new Blob([fromBase64(text.trim())]).stream().pipeThrough(new DecompressionStream("gzip"));
    const whole = new Uint8Array(await new Response(packed).arrayBuffer());
    const nWords = new DataView(whole.buffer).getUint32(0, true);
    const page = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + nWords)));
    for (const metric of page.metrics) if (!metric.bands.length) metric.bands = [{ below: null, severity: 0, side: 0, word: "" }];
    page.bytes = whole.subarray(4 + nWords);
    return page;
  };

  /** Undo the differences of one row of a plane of n cells. */
  const unpackRow = (bytes, plane, n, start, codes) => {
    const mask = plane.bits === 16 ? 0xffff : 0xff;
    const low = plane.at + start;
    const high = low + n;
    for (let col = 0, code = 0; col < codes.length; col++) {
      const delta = plane.bits === 16 ? bytes[low + col] | (bytes[high + col] << 8) : bytes[low + col];
      code = (code + delta) & mask;
      codes[col] = code;
    }
    return codes;
  };

  /** Codes of a plane, row by row. */
  app.codes = (run, plane) => {
    if (plane.codes) return plane.codes;
    const [nRows, nCols] = [run.layers.length, run.first_steps.length];
    plane.codes = new Uint16Array(nRows * nCols);
    for (let row = 0; row < nRows; row++) {
      const start = row * nCols;
      unpackRow(app.page.bytes, plane, nRows * nCols, start, plane.codes.subarray(start, start + nCols));
    }
    return plane.codes;
  };

  /** What a code stands for: NaN where nothing is known; log2 of the value for metrics read by their exponent. */
  app.fromCode = (plane, code) => {
    if (code >= FIRST) return plane.offset + (code - FIRST) * plane.unit;
    return [NaN, -Infinity, Infinity][code];
  };

  /** One row of a plane as numbers. */
  app.row = (run, plane, row) => {
    const nCols = run.first_steps.length;
    const codes = unpackRow(app.page.bytes, plane, run.layers.length * nCols, row * nCols, new Uint16Array(nCols));
    return Array.from(codes, (code) => app.fromCode(plane, code));
  };

  app.metric = (name) => app.page.metrics.find((metric) => metric.name === name);

  /** The metric of a plane, with the bands of its format. */
  app.metricOf = (plane) => {
    const metric = app.metric(plane.metric);
    const own = metric.bands_by_fmt || {};
    const bands = (Array.isArray(own) ? Object.fromEntries(own) : own)[plane.fmt];
    return bands ? { ...metric, bands } : metric;
  };

  /** Whether the bands of a metric are a scale without good or bad. */
  app.isNeutral = (metric) => metric.bands.every((band) => !band.severity);

  app.GEMMS = { fprop: "x", dgrad: "dy", wgrad: "dy" };

  /** The tensor whose page an operand or a GEMM leads to. */
  app.tensorOf = (operand) => app.GEMMS[operand] || operand;
})();
