/* Python for a page's explorers, in a worker. It is loaded when the pointer or the focus comes to their controls; at a
   touch, all settings are offered. Until then, and wherever it cannot run, the page shows its stored states as before. */
"use strict";

const START_S = 60, ANSWER_S = 20; // the longest that Python may take
const workerAddress = new URL("worker.js", document.currentScript.src);
const licences = new URL("python/licences/README.txt", workerAddress);
const isSaving = navigator.connection?.saveData || matchMedia("(prefers-reduced-data: reduce)").matches;
const waiting = new Map(); // questions without an answer, by number
let worker, hasAnswered, count = 0;

/* Ask a function of live.py, and return a promise of what it returns. */
function ask(question, ...given) {
  return new Promise((resolve, reject) => {
    if (!window.WebAssembly) throw new Error("this browser has no WebAssembly");
    if (!worker) startWorker();
    const most_s = hasAnswered ? ANSWER_S : START_S;
    const timer = setTimeout(() => stopWorker(`Python took more than ${most_s} seconds`), 1000 * most_s);
    waiting.set(++count, { resolve, reject, timer });
    worker.postMessage({ number: count, question, given: JSON.stringify(given) });
  });
}

function startWorker() {
  hasAnswered = false;
  worker = new Worker(workerAddress, { type: "module" });
  worker.onerror = () => stopWorker("the browser does not start Python");
  worker.onmessage = ({ data: { number, text, problem } }) => {
    if (problem) return stopWorker(problem);
    hasAnswered = true;
    const { resolve, reject, timer } = waiting.get(number);
    waiting.delete(number);
    clearTimeout(timer);
    const { answer, error } = JSON.parse(text);
    return error ? reject(new Error(error)) : resolve(answer);
  };
}

function stopWorker(problem) {
  worker.terminate();
  worker = undefined;
  for (const { reject, timer } of waiting.values()) {
    clearTimeout(timer);
    reject(new Error(problem));
  }
  waiting.clear();
}

/* A slider that is being drawn keeps its values until it is released. */
let isDrawn = false;
for (const kind of ["pointerdown", "pointerup", "pointercancel"]) {
  addEventListener(kind, ({ target }) => { isDrawn = kind === "pointerdown" && target.type === "range"; }, true);
}
async function released() {
  while (isDrawn) await new Promise((resolve) => setTimeout(resolve, 50));
}

function makeLive(panel) {
  const { place, said, side } = panel;
  if (!("live" in place.dataset) || !isServed || isSaving) return;
  let loading, starting, isComputing = false;
  const load = () => loading ??= ask("state", panel.name, panel.first).finally(() => { loading = undefined; });

  async function start() {
    said.textContent = "Python is loading (8 MB), for all settings …";
    await load();
    await released();
    panel.offerAll();
    panel.more.open ||= panel.texts.length > 0;
    place.dataset.live = "on";
    said.replaceChildren("All settings are live: ", element("a", { href: licences, textContent: "Python" }), " computes them in this page.");
  }

  /* Keep to the stored states. A Python that has worked can be started again, by the next touch. */
  function fail({ message }) {
    said.textContent = `${panel.texts.length ? "This is not the picture of your text" : "Only stored settings are shown"}: ${message}.`;
    panel.offerStored();
    panel.choose(panel.at);
    if (place.dataset.live !== "on") return;
    place.dataset.live = "";
    panel.compute = compute;
    starting = undefined;
  }

  /* Show the panel's settings, and again while they change. */
  async function compute() {
    if (isComputing) return;
    isComputing = true;
    try {
      await (starting ??= start());
      let at;
      do {
        at = panel.at;
        panel.show(await ask("state", panel.name, at));
      } while (at !== panel.at);
    } catch (error) {
      fail(error);
    }
    isComputing = false;
  }

  const touched = () => { if (!starting) (starting = start()).catch(fail); };
  panel.compute = compute; // an address may have settings that are not stored
  panel.more.hidden = panel.more.childElementCount === 1; // there is only its title
  for (const { input } of panel.texts) input.readOnly = false;
  for (const kind of ["pointerover", "focusin"]) side.addEventListener(kind, () => load().catch(() => {}), { once: true });
  for (const kind of ["pointerdown", "keydown"]) side.addEventListener(kind, touched);
}

document.addEventListener("explorer", ({ detail }) => makeLive(detail));
