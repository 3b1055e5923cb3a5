// @ts-check
// Questions to the server, with its own words where it refuses.

import { make } from "./dom.js";

/** Whether this page is a file: nobody answers but `saved.js`, and only what it was given. */
export const SAVED = document.body.classList.contains("saved");

/** @typedef {Record<string, string | number | undefined>} Options those of the address; undefined leaves one out */

/** The status of a trace that is still being opened, and when to ask again. */
const OPENING = 503;
const AGAIN_MS = 700;

/** What the server refused, in its words. */
export class Refusal extends Error {
  /** @param {string} problem @param {string} hint @param {number} status */
  constructor(problem, hint, status) {
    super(hint ? `${problem}. Try: ${hint}` : problem);
    this.problem = problem;
    this.hint = hint;
    this.status = status;
  }
}

/** The address of an answer. @param {string} name @param {Options} given */
function address(name, given) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(given)) if (value !== undefined) query.set(key, String(value));
  return `/api/${name}?${query}`;
}

/** The response to a question. @param {string} where @param {RequestInit} how */
async function respond(where, how) {
  const response = await fetch(where, how).catch((error) => {
    // This is how browsers say that nobody is there. What a saved page says instead is told as it is.
    throw error instanceof TypeError ? new Refusal("the server does not answer: was it ended?", "", 0) : error;
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Refusal(told.problem ?? `the server answered ${response.status}`, told.hint ?? "", response.status);
}

/** An answer in JSON. @param {string} name @param {Options} given @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function ask(name, given, signal) {
  return (await respond(address(name, given), { signal })).json();
}

/** An answer in JSON to a question that is too long for an address.
 * @param {string} name @param {Options} given @param {object} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function askWith(name, given, body, signal) {
  return (await respond(address(name, given), { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** An answer in JSON, also if the trace is only being opened: it is asked again until it is.
 * @param {string} name @param {Options} given @returns {Promise<any>} */
export async function askPatiently(name, given) {
  for (;;) {
    try {
      return await ask(name, given);
    } catch (error) {
      if (!(error instanceof Refusal) || error.status !== OPENING) throw error;
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }
}

/** An answer in bytes. @param {string} name @param {Options} given @param {AbortSignal} [signal] */
export async function askBytes(name, given, signal) {
  return (await respond(address(name, given), { signal })).arrayBuffer();
}

/** How far the trace of this page is opened; a problem is part of the answer. @returns {Promise<any>} */
export async function askState() {
  const trace = new URL(location.href).searchParams.get("trace") || undefined;
  return (await fetch(address("state", { trace }))).json();
}

/** Whether a question was given up by us. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** The words of an error. @param {unknown} error */
export function saying(error) {
  return error instanceof Error ? error.message : String(error);
}

/** An error as a page shows it. @param {unknown} error */
export function problem(error) {
  const { problem: told, hint } = error instanceof Refusal ? error : { problem: saying(error), hint: "" };
  return make("div", { class: "problem", role: "alert" },
    make("p", "", told), hint ? make("p", "small muted", hint) : null);
}
