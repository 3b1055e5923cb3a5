// @ts-check
// Hands a trace to Perfetto's viewer in another tab, as its documentation describes: the tab is opened, asked with
// PING until it says PONG, and then given the bytes. This is the one thing that loads another site, after a click.

import { askBytes, saying } from "./asking.js";

const SITE = "https://ui.perfetto.dev";
const EVERY_MS = 100;
const PATIENCE_MS = 60_000;

/** Opens the viewer and hands over what the server gives for these options.
 * @param {Record<string, string>} asked @param {HTMLElement} told Where it is said how far it is. */
export async function openInPerfetto(asked, told) {
  // At once: a browser lets a page open a tab only while it handles the click.
  const tab = window.open(SITE);
  if (!tab) {
    told.textContent = "The browser did not open a tab. Allow pop-ups for this address, and click again.";
    return;
  }
  try {
    told.textContent = "Writing the trace for Perfetto…";
    const buffer = await askBytes("pftrace", asked);
    told.textContent = "Waiting for ui.perfetto.dev…";
    await ready(tab);
    const title = `stepscope: ${document.querySelector(".bar .what, main .muted")?.textContent ?? "trace"}`;
    tab.postMessage({ perfetto: { buffer, title, fileName: "stepscope.pftrace" } }, SITE, [buffer]);
    told.textContent = "";
  } catch (error) {
    tab.close();
    told.textContent = `Perfetto could not be opened: ${saying(error)}`;
  }
}

/** Resolves when the viewer says that it listens. @param {Window} tab @returns {Promise<void>} */
function ready(tab) {
  return new Promise((resolve, reject) => {
    const began = performance.now();
    const timer = setInterval(() => {
      if (tab.closed) end(() => reject(new Error("its tab was closed")));
      else if (performance.now() - began > PATIENCE_MS) end(() => reject(new Error("it does not answer")));
      else tab.postMessage("PING", SITE);
    }, EVERY_MS);
    /** @param {MessageEvent} event */
    const hear = (event) => {
      if (event.source === tab && event.origin === SITE && event.data === "PONG") end(resolve);
    };
    /** @param {() => void} then */
    const end = (then) => {
      clearInterval(timer);
      removeEventListener("message", hear);
      then();
    };
    addEventListener("message", hear);
  });
}
