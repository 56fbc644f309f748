/* Controls over what explorers show. Every state of a page was drawn when the site was made; here it is only looked up.
   Where a page can also compute states (live.js), it offers all values. Settings are in the page's address, as in
   #samplers&num_ranks=7&drop_last=1: those that are not as the page shows them at first. */
"use strict";

const rankscopeStates = {}; // gzip in base64, by name: a script for each explorer adds its own
const isServed = location.protocol !== "file:";

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

/* A label around a native input and, of a slider, the value it is set to, or a field in which one can be typed. A text has
   an area and a button. Only an example changes what a reader has typed there. */
class Control {
  constructor(setting, changed) {
    this.setting = setting;
    const { name, label, kind, most } = setting;
    if (kind === "select") this.input = element("select", { name });
    else if (kind === "text") this.input = element("textarea", { name, rows: 16, value: setting.values[0], spellcheck: false, readOnly: true });
    else this.input = element("input", { name, type: kind, min: 0 });
    const submit = () => changed(this.chosen());
    const isWhole = ({ inputType }) => kind !== "text" || inputType === "insertFromPaste";
    this.input.addEventListener("input", (event) => isWhole(event) && submit());
    this.said = element("output");
    this.typed = element("input", { type: "number", min: setting.values[0], max: most, hidden: true, ariaLabel: `${label}, typed` });
    this.typed.addEventListener("change", () => {
      if (this.typed.reportValidity()) changed(this.typed.valueAsNumber);
    });
    this.element = element("label", { className: `explorer-${kind}` }, element("span", { textContent: label }), this.input, this.said);
    if (most) this.element.append(this.typed);
    if (kind === "text") this.element.append(element("button", { type: "button", textContent: "show", onclick: submit }));
  }

  chosen() {
    if (this.setting.kind === "checkbox") return this.input.checked;
    return this.setting.kind === "text" ? this.input.value : this.offered[this.input.value];
  }

  /* Let the reader choose among these values, and type others. What has the focus keeps it. */
  offer(values, canType) {
    this.offered = values;
    this.typed.hidden = !(canType && this.setting.most);
    this.said.hidden = !this.typed.hidden;
    if (this.setting.kind === "range") this.input.max = values.length - 1;
    if (this.setting.kind === "select") {
      this.input.replaceChildren(...values.map((value, number) => element("option", { value: number, text: this.words(value) })));
    }
  }

  words(value) {
    const place = this.setting.values.indexOf(value);
    return place < 0 ? value.toLocaleString("en") : this.setting.words[place];
  }

  set(value, isDisabled) {
    if (this.setting.kind === "checkbox") this.input.checked = value;
    else if (this.setting.kind !== "text") this.input.value = nearest(this.setting, value, this.offered);
    if (this.setting.kind === "range") {
      this.said.textContent = this.words(value);
      this.input.setAttribute("aria-valuetext", this.words(value));
      this.typed.value = value;
    }
    this.input.disabled = this.typed.disabled = isDisabled;
  }
}

/* The place among the offered values of the one nearest to a value, in the order in which the setting has them. */
function nearest({ values }, value, offered) {
  const placeOf = (one) => values.includes(one) ? values.indexOf(one) : values.length;
  const distances = offered.map((one) => Math.abs(placeOf(one) - placeOf(value)));
  return distances.indexOf(Math.min(...distances));
}

const inAddress = (value) => String(typeof value === "boolean" ? Number(value) : value);
const isSame = (one, other) => Object.keys(one).every((name) => one[name] === other[name]);

/* The states that were stored. Of a setting that does not move in them, they have the first value only. */
class Stored {
  constructor({ settings, first, presets, states, shown, pieces }) {
    Object.assign(this, { first, presets, states, shown, pieces });
    this.moving = settings.filter(({ stored }) => stored);
  }

  nearest(at) {
    const moved = this.moving.map((setting) => [setting.name, setting.stored[nearest(setting, at[setting.name], setting.stored)]]);
    return { ...this.first, ...Object.fromEntries(moved) };
  }

  find(at) {
    const preset = this.presets.find((one) => one.state && isSame(one.at, at));
    if (preset) return this.unpacked(preset.state);
    if (!isSame(at, this.nearest(at))) return undefined;
    const number = this.moving.reduce((sum, { name, stored }) => sum * stored.length + stored.indexOf(at[name]), 0);
    return this.unpacked(this.states[number]);
  }

  unpacked([number, disabled]) {
    return { html: this.shown[number].map((piece) => this.pieces[piece]).join(""), disabled };
  }
}

class Panel {
  constructor(place, data) {
    Object.assign(this, { place, name: place.dataset.name, settings: data.settings, presets: data.presets, first: data.first });
    this.stored = new Stored(data);
    this.compute = undefined; // live.js sets this function of settings, which draws a state that is not stored
    this.shown = place.querySelector(".explorer-shown");
    this.examples = element("select", { name: "example" }, element("option", { value: -1, text: "" }),
      ...data.presets.map(({ label }, value) => element("option", { value, text: label })));
    this.examples.addEventListener("input", () => {
      if (this.examples.value >= 0) this.take(data.presets[this.examples.value].at);
    });
    this.controls = data.settings.map((setting) => new Control(setting, (value) => this.move({ ...this.at, [setting.name]: value })));
    this.texts = this.controls.filter(({ setting }) => setting.kind === "text");
    const example = element("label", { className: "explorer-select" }, element("span", { textContent: "example" }), this.examples);
    const elements = (isMoving) => this.controls.filter(({ setting }) => Boolean(setting.stored) === isMoving).map((one) => one.element);
    this.more = element("details", { hidden: true }, element("summary", { textContent: "more settings" }), ...elements(false));
    this.side = element("div", { className: "explorer-controls" }, example, ...elements(true), this.more);
    this.said = element("p", { className: "explorer-said", role: "status" });
    this.foot = element("div", { className: "explorer-foot" }, this.said);
    if (isServed && !this.texts.length) this.foot.prepend(this.copyButton());
    place.prepend(this.side);
    place.append(this.foot);
    place.style.setProperty("--ratio", data.ratio); // the tallest drawings, so that what is below keeps its place
    this.offerStored();
    this.choose(this.first);
    place.dispatchEvent(new CustomEvent("explorer", { bubbles: true, detail: this }));
    this.follow();
    place.dataset.ready = "";
  }

  take(at) {
    for (const { input, setting } of this.texts) input.value = at[setting.name];
    this.move(at);
  }

  offerStored() {
    this.compute = undefined;
    for (const one of this.controls) one.offer(one.setting.stored ?? [this.first[one.setting.name]], false);
  }

  offerAll() {
    for (const one of this.controls) one.offer(one.setting.values, true);
    this.setControls();
  }

  /* Go to these settings, or to the nearest that are stored if the page cannot compute. */
  choose(at) {
    const state = this.stored.find(at);
    if (!state && !this.compute) return this.choose(this.stored.nearest(at));
    this.at = at;
    if (state) this.show(state);
    else this.compute(at);
    this.setControls();
  }

  move(at) {
    this.choose(at);
    history.replaceState(null, "", this.address());
  }

  show(state) {
    const isOpen = this.shown.querySelector("details")?.open; // the report
    this.state = state;
    this.shown.innerHTML = state.html;
    this.shown.querySelector("details")?.toggleAttribute("open", Boolean(isOpen));
    this.setControls();
  }

  setControls() {
    this.examples.value = this.presets.findIndex((preset) => isSame(preset.at, this.at));
    for (const one of this.controls) one.set(this.at[one.setting.name], this.state.disabled.includes(one.setting.name));
  }

  address() {
    const moved = this.settings.filter(({ name, kind }) => kind !== "text" && this.at[name] !== this.first[name]);
    const pairs = moved.map(({ name }) => `${name}=${encodeURIComponent(inAddress(this.at[name]))}`);
    return `#${[this.name, ...pairs].join("&")}`;
  }

  /* Take the settings of the address, if they are of this explorer; what it does not have stays as it was at first. */
  follow() {
    const [name, ...pairs] = location.hash.slice(1).split("&");
    if (name !== this.name) return;
    const at = { ...this.first };
    for (const [key, text] of new URLSearchParams(pairs.join("&"))) {
      const { values, most } = this.settings.find((setting) => setting.name === key) ?? { values: [] };
      const found = values.find((value) => inAddress(value) === text);
      const isTyped = most && /^\d+$/.test(text) && Number(text) >= values[0] && Number(text) <= most;
      if (found !== undefined) at[key] = found;
      else if (isTyped) at[key] = Number(text);
    }
    this.choose(at);
    this.place.scrollIntoView();
  }

  copyButton() {
    const button = element("button", { type: "button", textContent: "copy link" });
    button.addEventListener("click", async () => {
      const link = new URL(this.address(), location.href).href;
      try {
        await navigator.clipboard.writeText(link);
        this.said.textContent = "The link to these settings is copied.";
      } catch {
        window.prompt("The link to these settings", link); // a page without https has no clipboard
      }
    });
    return button;
  }
}

/* The script of an explorer's states is loaded when the explorer comes near, or when the address names it. */
const folder = new URL("explorers/", document.currentScript.src);
const panels = new Map(); // by place
const near = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) if (isIntersecting) load(target);
}, { rootMargin: "100%" });

function load(place) {
  if (panels.has(place)) return;
  panels.set(place, undefined);
  near.unobserve(place);
  const name = place.dataset.states;
  const unpack = () => unpacked(rankscopeStates[name]).then((data) => panels.set(place, new Panel(place, data)));
  document.head.append(element("script", { src: new URL(`${name}.js`, folder), onload: unpack }));
}

function followAddress() {
  const [name] = location.hash.slice(1).split("&");
  const place = document.querySelector(`.explorer[data-name="${CSS.escape(name)}"]`);
  if (place) load(place);
  panels.get(place)?.follow();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".explorer")) near.observe(place);
  addEventListener("hashchange", followAddress);
  followAddress();
});
