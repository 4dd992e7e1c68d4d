// Layers x steps on a canvas. The canvas stays in view; what scrolls under it is an empty box of the size of the whole.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const AXIS = 24;
  const BAR = 16; // room for a scroll bar
  const [LEAST_ROW, MOST_ROW, MOST_HEIGHT, MOST_CELL] = [4, 20, 800, 64];

  /** Shared by all panels: zoom, the rows and columns that are shown, and the cell of the cursor. */
  app.view = { zoomX: 1, zoomY: 1, rows: [], columns: [], cursor: null };

  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const font = (size) => `${size}px system-ui, sans-serif`;

  class Panel {
    constructor(title, run) {
      this.title = title;
      this.run = run;
      this.start = app.commonStart(run.layers);
      this.canvas = app.el("canvas", {
        class: "heatmap", tabindex: "0", role: "application", "aria-roledescription": "heatmap",
        "aria-describedby": "heatmap-help heatmap-keys", "data-run": title || run.name,
      });
      this.space = app.el("div", { class: "space" }, this.canvas);
      this.scroller = app.el("div", { class: "scroller" }, this.space);
      this.node = app.el("figure", { class: "panel" }, title ? app.el("figcaption", {}, title) : null, this.scroller);
      this.scroller.addEventListener("scroll", () => this.scrolled());
      app.listen(this);
    }

    /** Sizes for the width there is. */
    measure() {
      const { rows, columns, zoomX, zoomY } = app.view;
      const width = Math.max(240, app.printWidth || this.node.clientWidth);
      this.gutter = Math.round(clamp(this.widestName() + 12, 60, Math.min(260, width * 0.34)));
      const natural = clamp(Math.floor(MOST_HEIGHT / Math.max(1, rows.length)), LEAST_ROW, MOST_ROW);
      this.rowHeight = clamp(natural * zoomY, LEAST_ROW, 28);
      const isTall = rows.length * this.rowHeight > MOST_HEIGHT;
      this.plotWidth = Math.min(width - this.gutter - 8 - (isTall ? BAR : 0), Math.max(1, columns.length) * MOST_CELL);
      this.plotHeight = Math.min(MOST_HEIGHT, Math.max(1, rows.length) * this.rowHeight);
      this.wholeWidth = Math.round(this.plotWidth * zoomX);
      this.wholeHeight = Math.max(1, rows.length) * this.rowHeight;
      this.width = this.gutter + this.plotWidth + 8;
      this.height = this.plotHeight + AXIS;
      this.scroller.classList.toggle("wide", this.wholeWidth > this.plotWidth);
      this.scroller.classList.toggle("tall", isTall);
      this.space.style.width = `${this.wholeWidth + this.width - this.plotWidth}px`;
      this.space.style.height = `${this.wholeHeight + AXIS}px`;
      const hasBars = isTall || this.wholeWidth > this.plotWidth; // to ask for their size costs a layout of the page
      const [right, below] = hasBars ? [this.scroller.offsetWidth - this.scroller.clientWidth, this.scroller.offsetHeight - this.scroller.clientHeight] : [0, 0];
      this.scroller.style.width = `${this.width + right}px`;
      this.scroller.style.height = `${this.height + below}px`;
      const scale = app.printWidth ? Math.max(3, devicePixelRatio) : devicePixelRatio || 1;
      this.scale = scale;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.height}px`;
      this.canvas.width = Math.round(this.width * scale);
      this.canvas.height = Math.round(this.height * scale);
      this.whole = null;
    }

    widestName() {
      const context = this.canvas.getContext("2d");
      context.font = font(12);
      return this.run.layers.reduce((most, name) => (name.length > 60 ? 400 : Math.max(most, context.measureText(name).width)), 0);
    }

    get scrollX() {
      return clamp(this.scroller.scrollLeft, 0, this.wholeWidth - this.plotWidth);
    }

    get scrollY() {
      return clamp(this.scroller.scrollTop, 0, this.wholeHeight - this.plotHeight);
    }

    draw() {
      const { rows, columns } = app.view;
      const context = this.canvas.getContext("2d");
      context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
      context.fillStyle = app.colour("paper");
      context.fillRect(0, 0, this.width, this.height);
      context.save();
      context.beginPath();
      context.rect(this.gutter, 0, this.plotWidth, this.plotHeight);
      context.clip();
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = app.hatch(context, this.scale);
      context.fillRect(0, 0, this.canvas.width, this.canvas.height);
      context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
      this.whole = this.whole || app.picture(this.field, rows, columns, Math.round(this.wholeWidth * this.scale));
      context.imageSmoothingEnabled = false;
      context.drawImage(this.whole, this.gutter - this.scrollX, -this.scrollY, this.wholeWidth, this.wholeHeight);
      this.drawCells(context);
      context.restore();
      this.drawNames(context);
      this.drawSteps(context);
      this.drawDragged(context);
    }

    /** Lines between cells, marks of what is not finite, and the cursor. */
    drawCells(context) {
      const { rows, columns, cursor } = app.view;
      const cell = this.wholeWidth / columns.length;
      const seen = this.seen();
      context.fillStyle = app.colour("paper");
      if (this.rowHeight >= 9) {
        for (let i = seen.top; i <= seen.bottom; i++) context.fillRect(this.gutter, i * this.rowHeight - this.scrollY - 1, this.plotWidth, 1);
      }
      if (cell >= 9) {
        for (let i = seen.left; i <= seen.right; i++) context.fillRect(this.gutter + i * cell - this.scrollX - 1, 0, 1, this.plotHeight);
      }
      if (this.rowHeight >= 9 && cell >= 5) {
        context.font = `bold ${font(Math.min(12, this.rowHeight))}`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillStyle = app.colour("on-infinite");
        for (let r = seen.top; r < seen.bottom; r++) {
          for (let c = seen.left; c < seen.right; c++) {
            const entry = app.entryAt(this.field, rows[r], columns[c]);
            if (!entry || !entry.isRare) continue;
            context.fillText("×", this.gutter + (c + 0.5) * cell - this.scrollX, (r + 0.5) * this.rowHeight - this.scrollY);
          }
        }
      }
      if (!cursor) return;
      const [row, column] = [rows.indexOf(cursor.row), columns.indexOf(cursor.col)];
      if (row < 0 || column < 0) return;
      const box = [this.gutter + column * cell - this.scrollX, row * this.rowHeight - this.scrollY, Math.max(cell, 3), this.rowHeight];
      const grow = (by) => [box[0] - by, box[1] - by, box[2] + 2 * by, box[3] + 2 * by];
      context.strokeStyle = app.colour("paper");
      context.lineWidth = 3;
      context.strokeRect(...grow(1));
      context.strokeStyle = app.colour("ink");
      context.lineWidth = 1.5;
      context.strokeRect(...grow(1));
    }

    drawNames(context) {
      const { rows, cursor } = app.view;
      const seen = this.seen();
      const every = Math.max(1, Math.ceil(13 / this.rowHeight));
      context.font = font(Math.min(12, Math.max(10, this.rowHeight - 2)));
      context.textAlign = "right";
      context.textBaseline = "middle";
      const marked = cursor ? rows.indexOf(cursor.row) : -1;
      for (let i = seen.top; i < seen.bottom; i++) {
        const isMarked = i === marked;
        if (i % every && !isMarked) continue;
        if (!isMarked && marked >= 0 && Math.abs(i - marked) < every) continue;
        const y = (i + 0.5) * this.rowHeight - this.scrollY;
        if (y < 4 || y > this.plotHeight - 4) continue;
        context.fillStyle = app.colour(isMarked ? "ink" : "soft");
        context.fillText(app.elide(context, this.run.layers[rows[i]], this.gutter - 10, this.start), this.gutter - 7, y);
      }
    }

    drawSteps(context) {
      const { columns } = app.view;
      const cell = this.wholeWidth / columns.length;
      const seen = this.seen();
      const name = (i) => `${this.run.first_steps[columns[i]]}`;
      context.font = font(11);
      context.fillStyle = app.colour("soft");
      context.strokeStyle = app.colour("line");
      context.textBaseline = "top";
      context.textAlign = "center";
      const apart = context.measureText(name(columns.length - 1)).width + 22;
      const every = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000].find((n) => n * cell >= apart) || columns.length;
      const right = this.gutter + this.plotWidth;
      const stride = every * (name(1) - name(0)); // labels are round numbers where steps are evenly apart
      const shift = Array.from({ length: Math.min(every, columns.length) }, (_, i) => i).find((i) => name(i) % stride === 0) || 0;
      for (let i = Math.ceil((seen.left - shift) / every) * every + shift; i < seen.right; i += every) {
        const x = this.gutter + (i + 0.5) * cell - this.scrollX;
        if (x < this.gutter || x > right) continue;
        context.beginPath();
        context.moveTo(x, this.plotHeight);
        context.lineTo(x, this.plotHeight + 4);
        context.stroke();
        const half = context.measureText(name(i)).width / 2;
        context.fillText(name(i), Math.min(x, this.width - half - 1), this.plotHeight + 7);
      }
      context.textAlign = "right";
      context.fillText("step", this.gutter - 7, this.plotHeight + 7);
    }

    drawDragged(context) {
      if (!this.dragged) return;
      const { x0, y0, x1, y1 } = this.dragged;
      context.fillStyle = app.colour("choice");
      context.globalAlpha = 0.18;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
      context.globalAlpha = 1;
      context.strokeStyle = app.colour("choice");
      context.lineWidth = 1;
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }

    /** Which rows and columns are in view, as places among those shown. */
    seen() {
      const { rows, columns } = app.view;
      const cell = this.wholeWidth / columns.length;
      return {
        left: Math.floor(this.scrollX / cell),
        right: Math.min(columns.length, Math.ceil((this.scrollX + this.plotWidth) / cell)),
        top: Math.floor(this.scrollY / this.rowHeight),
        bottom: Math.min(rows.length, Math.ceil((this.scrollY + this.plotHeight) / this.rowHeight)),
      };
    }

    /** The cell at a place on the canvas; null: none. A place left of the plot is its row alone. */
    cellAt(x, y) {
      const { rows, columns } = app.view;
      const row = Math.floor((y + this.scrollY) / this.rowHeight);
      const column = Math.floor(((x - this.gutter + this.scrollX) / this.wholeWidth) * columns.length);
      if (y < 0 || y >= this.plotHeight || row < 0 || row >= rows.length) return null;
      if (x < this.gutter) return { row: rows[row], col: null };
      if (x >= this.gutter + this.plotWidth || column >= columns.length) return null;
      return { row: rows[row], col: this.worstColumn(rows[row], column) };
    }

    /** Where several columns share a picture element, the one that is drawn. */
    worstColumn(row, column) {
      const { columns } = app.view;
      const n = Math.min(columns.length, Math.round(this.wholeWidth * this.scale));
      if (n === columns.length) return columns[column];
      const x = Math.min(n - 1, Math.floor((column * n) / columns.length));
      const severity = (col) => (app.entryAt(this.field, row, col) || { severity: -1 }).severity;
      const span = columns.slice(Math.floor((x * columns.length) / n), Math.floor(((x + 1) * columns.length) / n));
      return span.reduce((worst, col) => (severity(col) > severity(worst) ? col : worst), span[0] ?? columns[column]);
    }

    /** Scroll the cursor into view. */
    reveal() {
      const { rows, columns, cursor } = app.view;
      if (!cursor) return;
      const cell = this.wholeWidth / columns.length;
      const x = columns.indexOf(cursor.col) * cell;
      const y = rows.indexOf(cursor.row) * this.rowHeight;
      if (x < this.scrollX) this.scroller.scrollLeft = x;
      if (x + cell > this.scrollX + this.plotWidth) this.scroller.scrollLeft = x + cell - this.plotWidth;
      if (y < this.scrollY) this.scroller.scrollTop = y;
      if (y + this.rowHeight > this.scrollY + this.plotHeight) this.scroller.scrollTop = y + this.rowHeight - this.plotHeight;
    }

    scrolled() {
      app.hideTooltip();
      for (const other of app.panels) {
        if (other === this) continue;
        other.scroller.scrollLeft = this.scroller.scrollLeft;
        other.scroller.scrollTop = this.scroller.scrollTop;
      }
      requestAnimationFrame(() => this.draw());
    }
  }

  app.Panel = Panel;

  app.drawPanels = () => app.panels.forEach((panel) => panel.draw());

  app.sizePanels = () => {
    app.panels.forEach((panel) => panel.measure());
    app.drawPanels();
  };

  /** Zoom so that the given columns and rows (places among those shown) fill the plot. */
  app.zoomTo = (left, right, top, bottom) => {
    const { view, panels } = app;
    view.zoomX = clamp(view.columns.length / (right - left), 1, Math.max(1, view.columns.length / 4));
    const panel = panels[0];
    const natural = panel.wholeHeight / view.rows.length / view.zoomY;
    view.zoomY = clamp(panel.plotHeight / (bottom - top) / natural, 1, 28 / natural);
    app.sizePanels();
    for (const each of panels) {
      each.scroller.scrollLeft = (left / view.columns.length) * each.wholeWidth;
      each.scroller.scrollTop = top * each.rowHeight;
    }
    app.drawPanels();
    app.showZoom();
  };

  /** Zoom by a factor about a cell, which stays where it is. */
  app.zoomBy = (factor, panel, x = null, y = null) => {
    const { view } = app;
    const at = { x: x ?? panel.gutter + panel.plotWidth / 2, y: y ?? panel.plotHeight / 2 };
    const across = (at.x - panel.gutter + panel.scrollX) / panel.wholeWidth;
    const down = (at.y + panel.scrollY) / panel.wholeHeight;
    const natural = panel.rowHeight / view.zoomY;
    view.zoomX = clamp(view.zoomX * factor, 1, Math.max(1, view.columns.length / 4));
    view.zoomY = clamp(view.zoomY * factor, 1, Math.max(1, 28 / natural));
    app.sizePanels();
    for (const each of app.panels) {
      each.scroller.scrollLeft = across * each.wholeWidth - (at.x - panel.gutter);
      each.scroller.scrollTop = down * each.wholeHeight - at.y;
    }
    app.drawPanels();
    app.showZoom();
  };

  app.resetZoom = () => {
    Object.assign(app.view, { zoomX: 1, zoomY: 1 });
    app.sizePanels();
    app.showZoom();
  };
})();
