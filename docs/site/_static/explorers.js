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
function control({ label, kind, values }, changed) {
  const said = element("output");
  const input = kind === "select"
    ? element("select", {}, ...values.map((text, value) => element("option", { value, text })))
    : element("input", { type: kind, min: 0, max: values.length - 1, step: 1 });
  input.addEventListener("input", () => changed(kind === "checkbox" ? Number(input.checked) : Number(input.value)));
  return {
    element: element("label", { className: `explorer-${kind}` }, element("span", { textContent: label }), input, said),
    set(value, disabled, words = values[value]) {
      if (kind === "range") said.textContent = words;
      if (kind === "range") input.setAttribute("aria-valuetext", words);
      if (kind === "checkbox") input.checked = value === 1;
      else input.value = value;
      input.disabled = disabled;
    },
  };
}

function open(place, data) {
  const shown = place.querySelector(".explorer-shown");
  let at = [...data.presets[0].at];
  const stateAt = () => data.states[at.reduce((sum, value, n) => sum * data.controls[n].values.length + value, 0)];
  function show(state = stateAt(), typed = []) {
    const [number, disabled] = state;
    shown.innerHTML = data.shown[number].map((piece) => data.pieces[piece]).join("");
    controls.forEach((one, n) => one.set(at[n], disabled.includes(n), typed[n] ?? undefined));
  }
  const controls = data.controls.map((one, n) => control(one, (value) => {
    at[n] = value;
    examples.value = "";
    show();
  }));
  const examples = element("select", {}, element("option", { value: "", text: "" }),
    ...data.presets.map(({ label }, value) => element("option", { value, text: label })));
  examples.addEventListener("input", () => {
    const preset = data.presets[examples.value];
    if (!preset) return;
    at = [...preset.at];
    show(preset.state ?? stateAt(), preset.typed);
  });
  const example = element("label", { className: "explorer-select" }, element("span", { textContent: "example" }), examples);
  place.prepend(element("div", { className: "explorer-controls" }, example, ...controls.map((one) => one.element)));
  place.style.setProperty("--ratio", data.ratio); // the tallest drawings, so that what is below keeps its place
  examples.value = "0";
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
