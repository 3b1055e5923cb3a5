// @ts-check
// Links with `data-dialog` open that dialog instead of leaving the page; words open their definition below.

/** @param {HTMLElement} element */
export function draw(element) {
  element.remove();
  for (const link of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-dialog]"))) {
    const dialog = /** @type {HTMLDialogElement | null} */ (document.getElementById(link.dataset.dialog ?? ""));
    if (!dialog) continue;
    link.addEventListener("click", (event) => {
      if (event instanceof MouseEvent && (event.metaKey || event.ctrlKey || event.shiftKey)) return;
      event.preventDefault();
      dialog.showModal();
      dialog.scrollTop = 0;
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();  // beside it
    });
  }
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("a.word"))) {
    link.addEventListener("click", () => {
      const details = document.getElementById(link.hash.slice(1))?.closest("details");
      if (details) details.open = true;
    });
  }
}
