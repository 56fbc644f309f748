/* Controls over what explorers showed when this site was made. Every state was drawn then; here it is only looked up. */
"use strict";

const rankscopeStates = {}; // gzip in base64, by name: a script for each explorer adds its own

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function element(tag, properties, ...children) {
  const added = Object.assign(document.createElement(tag), properties);
  added.append(...children);
  return added;
}

/* A control: a label around a native input and, of a slider, the value it is set to. */
function control({ name, label, hint, kind, values }, changed) {
  const said = element("output");
  const input = kind === "select"
    ? element("select", { name }, ...values.map((text, value) => element("option", { value, text })))
    : element("input", { name, type: kind, min: 0, max: values.length - 1, step: 1 });
  input.addEventListener("input", () => changed(kind === "checkbox" ? Number(input.checked) : Number(input.value)));
  return {
    element: element("label", { className: `explorer-${kind}` }, element("span", { textContent: label }), input,
      ...(kind === "range" ? [said] : [])),
    set(value, reason, end) {
      if (kind === "range") {
        input.max = end ?? values.length - 1;
        said.textContent = values[value];
        input.setAttribute("aria-valuetext", values[value]);
      }
      if (kind === "checkbox") input.checked = value === 1;
      else input.value = value;
      input.disabled = reason !== undefined;
      this.element.title = reason ?? hint;
    },
  };
}

/* A button that moves a slider by itself, from its end to its beginning again. */
function player(slider) {
  const button = element("button", { type: "button", textContent: "Play" });
  let timer;
  button.addEventListener("click", () => {
    clearInterval(timer);
    timer = button.textContent === "Play" && setInterval(() => {
      slider.value = slider.value === slider.max ? 0 : Number(slider.value) + 1;
      slider.dispatchEvent(new Event("input"));
    }, 300);
    button.textContent = timer ? "Pause" : "Play";
  });
  return button;
}

function open(place, data) {
  const at = JSON.parse(place.dataset.start);
  const [pictures, report, line] = ["pictures", "report", "line"].map((part) => place.querySelector(`.explorer-${part}`));
  const state = () => data.states[at.reduce((sum, value, n) => sum * data.controls[n].values.length + value, 0)];
  function show() {
    const ends = data.limits[state()[2]].ends;
    for (const n in ends) at[n] = Math.min(at[n], ends[n]);
    const [drawn, words, limits, call] = state();
    pictures.innerHTML = drawn.map((picture) => data.pictures[picture].map((part) => data.parts[part]).join("")).join("");
    report.innerHTML = data.reports[words];
    line.textContent = call;
    const { dead } = data.limits[limits];
    controls.forEach((one, n) => one.set(at[n], dead[n], ends[n]));
    presets.forEach(({ button, values }) => button.setAttribute("aria-pressed", `${values}` === `${at}`));
  }
  const controls = data.controls.map((one, n) => control(one, (value) => { at[n] = value; show(); }));
  const presets = data.presets.map(({ label, line: title, at: values }) => {
    const button = element("button", { type: "button", textContent: label, title });
    button.addEventListener("click", () => { at.splice(0, at.length, ...values); show(); });
    return { button, values };
  });
  place.prepend(
    element("div", { className: "explorer-presets" }, ...presets.map((one) => one.button)),
    element("div", { className: "explorer-controls" }, ...controls.map((one) => one.element)),
  );
  const played = controls[data.played];
  if (played) played.element.after(player(played.element.querySelector("input")));
  show();
  place.dataset.ready = "";
}

/* The script of an explorer's states is loaded when the explorer comes near. */
const folder = new URL("explorers/", document.currentScript.src);
const near = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    const name = target.dataset.states;
    const unpack = () => unpacked(rankscopeStates[name]).then((data) => open(target, data));
    document.head.append(element("script", { src: new URL(`${name}.js`, folder), onload: unpack }));
  }
}, { rootMargin: "100%" });

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".explorer").forEach((place) => near.observe(place));
});
