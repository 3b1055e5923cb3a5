// Loaded before anything is drawn, so that a page never shows the other theme first.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser may keep nothing for a page.
}
