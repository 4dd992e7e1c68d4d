// Keys of the whole page, and the list of them.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});
  const KEYS = [
    ["Arrows", "move the cursor on the heatmap"],
    ["Home, End", "first, last step"],
    ["Page up, down", "ten layers up, down"],
    ["Enter", "open the layer under the cursor"],
    ["+  −  0", "zoom in, out, show all (Ctrl and wheel, or a drag, zoom too)"],
    ["Escape", "back to the heatmap"],
    ["/", "find a layer by its name"],
    ["?", "this list"],
  ];
  let dialog = null;

  const build = () => {
    const list = app.el("dl", {});
    for (const [key, meaning] of KEYS) list.append(app.el("dt", {}, app.el("kbd", {}, key)), app.el("dd", {}, meaning));
    const close = app.el("button", { type: "button", onclick: () => dialog.close() }, "Close");
    dialog = app.el("dialog", { id: "keys", "aria-labelledby": "keys-title" }, app.el("h2", { id: "keys-title" }, "Keys"), list, close);
    document.body.append(dialog);
  };

  app.startKeys = () => {
    build();
    app.keysButton = app.el("button", { type: "button", title: "Keys", "aria-haspopup": "dialog", onclick: () => dialog.showModal() }, "Keys");
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
      const isTyping = event.target.closest("input, select, textarea");
      if (event.key === "Escape") app.closeLayer();
      else if (isTyping) return;
      else if (event.key === "/") app.focusFilter();
      else if (event.key === "?") dialog.showModal();
      else return;
      event.preventDefault();
    });
  };
})();
