/* Controls over what explorers showed when this site was made. Every state was drawn then; here it is only looked up. */
"use strict";

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function made(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/* A control: a label around a native input and, of a slider, the value it is set to. */
function control({ name, label, kind, values }, changed) {
  const said = made("output");
  const input = kind === "select"
    ? made("select", { name }, ...values.map((text, value) => made("option", { value, text })))
    : made("input", { name, type: kind, min: 0, max: values.length - 1, step: 1 });
  input.addEventListener("input", () => changed(kind === "checkbox" ? Number(input.checked) : Number(input.value)));
  return {
    element: made("label", { className: `explorer-${kind}` }, made("span", { textContent: label }), input,
      ...(kind === "range" ? [said] : [])),
    set(value, reason) {
      if (kind === "checkbox") input.checked = value === 1;
      else input.value = value;
      if (kind === "range") {
        said.textContent = values[value];
        input.setAttribute("aria-valuetext", values[value]);
      }
      input.disabled = reason !== undefined;
      this.element.title = reason ?? "";
    },
  };
}

function open(place, data) {
  const at = JSON.parse(place.dataset.start);
  const [pictures, report] = [".explorer-pictures", ".explorer-report"].map((part) => place.querySelector(part));
  const controls = data.controls.map((one, number) => control(one, (value) => { at[number] = value; show(); }));
  function show() {
    const state = at.reduce((sum, value, number) => sum * data.controls[number].values.length + value, 0);
    const [picture, words, without] = data.states[state];
    pictures.innerHTML = data.pictures[picture].map((part) => data.parts[part]).join("");
    report.innerHTML = data.reports[words];
    controls.forEach((one, number) => one.set(at[number], data.without_effect[without][number]));
  }
  const presets = (data.presets ?? []).map(({ label, values }) => {
    const button = made("button", { type: "button", textContent: label });
    button.addEventListener("click", () => { at.splice(0, at.length, ...values); show(); });
    return button;
  });
  const elements = controls.map((one) => one.element);
  place.prepend(
    ...(presets.length ? [made("div", { className: "explorer-presets" }, ...presets)] : []),
    made("div", { className: "explorer-controls" }, ...elements),
  );
  show();
  place.dataset.ready = "";
}

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".explorer")) {
    unpacked(globalThis.rankscopeStates[place.dataset.states]).then((data) => open(place, data));
  }
});
