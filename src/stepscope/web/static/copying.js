// @ts-check
// Buttons that copy the code beside them; they are hidden where there is no script.

/** Shows the buttons of a page. */
export function enlivenAll() {
  for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll(".copied button"))) {
    enliven(button);
  }
}

/** Makes one button copy. @param {HTMLButtonElement} button */
export function enliven(button) {
  const code = button.parentElement?.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(code?.textContent ?? "");
    } catch {
      if (code) getSelection()?.selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
