// A button on every text that is there to be copied.
(() => {
  "use strict";
  const app = (window.fp8debug = window.fp8debug || {});

  const byHand = (text) => {
    const area = app.el("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy"); // pages from a disk may not have the clipboard itself
    area.remove();
    return isDone;
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return byHand(text);
    }
  };

  app.addCopyButtons = (root) => {
    for (const pre of root.querySelectorAll("pre.sql, pre.copy")) {
      if (pre.parentElement.classList.contains("copied")) continue;
      const text = pre.textContent;
      const button = app.el("button", { type: "button", class: "copy" }, "Copy");
      const hold = app.el("div", { class: "copied" });
      pre.replaceWith(hold);
      hold.append(pre, button);
      button.addEventListener("click", async () => {
        const isDone = await copy(text);
        button.textContent = isDone ? "Copied" : "Select and copy";
        if (!isDone) getSelection().selectAllChildren(pre);
        setTimeout(() => (button.textContent = "Copy"), 1600);
      });
    }
  };
})();
