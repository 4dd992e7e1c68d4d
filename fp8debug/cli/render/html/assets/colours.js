// Colours come from the style sheet, so that light, dark and print are said in one place.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  let known = new Map();

  /** A colour of the style sheet by name, as a string for canvas and styles. */
  app.colour = (name) => {
    if (!known.has(name)) {
      known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888888");
    }
    return known.get(name);
  };

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

  /** A colour of a scale without good or bad: 0 pale … 1 strong. Known by the name that is returned. */
  const tone = (part) => {
    const name = `tone-${part.toFixed(3)}`;
    if (!known.has(name)) {
      const [from, to, at] = part < 0.5 ? ["tone-low", "tone-middle", part * 2] : ["tone-middle", "tone-high", part * 2 - 1];
      const [low, high] = [channels(app.colour(from)), channels(app.colour(to))];
      known.set(name, `#${low.map((c, i) => Math.round(c + (high[i] - c) * at).toString(16).padStart(2, "0")).join("")}`);
    }
    return name;
  };

  app.forgetColours = () => {
    known = new Map();
  };

  /** The name of the colour of a band: pale to strong by severity, cold below good and warm above it. */
  app.bandColour = (metric, band) => {
    if (app.isNeutral(metric)) return tone(metric.bands.indexOf(band) / Math.max(1, metric.bands.length - 1));
    return `${band.side < 0 ? "cold" : "warm"}-${band.severity}`;
  };

  /** A colour as the 32 bits that a picture holds of it. */
  app.pixel = (name) => {
    const hex = parseInt(app.colour(name).slice(1), 16);
    return (0xff000000 | ((hex & 0xff) << 16) | (hex & 0xff00) | (hex >> 16)) >>> 0;
  };

  /** A hatched pattern: nothing recorded. */
  app.hatch = (context, scale) => {
    const size = Math.round(6 * scale);
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const ink = tile.getContext("2d");
    ink.fillStyle = app.colour("empty");
    ink.fillRect(0, 0, size, size);
    ink.strokeStyle = app.colour("hatch");
    ink.lineWidth = scale;
    ink.beginPath();
    for (const shift of [-size, 0, size]) {
      ink.moveTo(shift, size);
      ink.lineTo(shift + size, 0);
    }
    ink.stroke();
    return context.createPattern(tile, "repeat");
  };

  const stored = () => {
    try {
      return localStorage.getItem("fp8debug-theme");
    } catch {
      return null;
    }
  };

  const store = (theme) => {
    try {
      localStorage.setItem("fp8debug-theme", theme);
    } catch {
      // A page opened from a disk may have no storage: the choice then lasts as long as the page.
    }
  };

  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    app.forgetColours();
    if (app.themeButton) app.themeButton.textContent = theme === "dark" ? "Light" : "Dark";
  };

  /** Take the theme that was chosen here before, else that of the system, and follow both. */
  app.startTheme = () => {
    app.themeButton = app.el("button", { type: "button", id: "theme", title: "Switch between light and dark" });
    app.themeButton.addEventListener("click", () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      store(theme);
      show(theme);
      app.redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (stored()) return;
      show(system());
      app.redraw();
    });
    show(stored() || system());
  };
})();
