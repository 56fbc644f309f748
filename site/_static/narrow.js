/* Pictures on a narrow window: a picture whose text would become too small is laid out anew instead of shrunk. Its marks
   become narrower while its texts keep their size: titles and long texts wrap, legends flow, ticks become fewer, and a
   number that no longer fits its mark is left out. A tap on the picture shows it as it was drawn. */
"use strict";

const narrow = (() => {
  const LEAST_TEXT_PX = 9; // of the smallest text of a picture that is laid out anew
  const SHRUNK_TEXT_PX = 8; // a picture whose smallest text stays this high is only shrunk
  const LEAST_SHARE = 0.2; // of their width that marks keep, so that long labels leave something to see
  const LINE = 1.3; // the distance of two lines, in heights of their letters
  const ROW = 3; // texts whose baselines differ by less stand in one row
  const SVG = "http://www.w3.org/2000/svg";
  const ruler = document.createElement("canvas").getContext("2d");

  function widthOf(words, size, bold) {
    ruler.font = `${bold ? "bold " : ""}100px "DejaVu Sans", Verdana, sans-serif`;
    return (ruler.measureText(words).width * size) / 100;
  }

  // ---- paths, as lists of parts that begin with M, in absolute coordinates

  function partsOf(d) {
    const parts = [];
    let [x, y, startX, startY] = [0, 0, 0, 0];
    for (const [, command, rest] of d.matchAll(/([A-Za-z])([^A-Za-z]*)/g)) {
      const numbers = (rest.match(/-?[\d.]+(?:e-?\d+)?/g) ?? []).map(Number);
      const upper = command.toUpperCase(), relative = command !== upper;
      if (upper === "Z") {
        parts.at(-1).push(["Z"]);
        [x, y] = [startX, startY];
        continue;
      }
      const count = { M: 2, L: 2, H: 1, V: 1, C: 6, Q: 4 }[upper];
      for (let at = 0; at + count <= numbers.length; at += count) {
        const [baseX, baseY] = relative ? [x, y] : [0, 0];
        let points;
        if (upper === "H") points = [numbers[at] + baseX, y];
        else if (upper === "V") points = [x, numbers[at] + baseY];
        else points = numbers.slice(at, at + count).map((value, place) => value + (place % 2 ? baseY : baseX));
        [x, y] = points.slice(-2);
        if (upper === "M" && at === 0) {
          parts.push([]);
          [startX, startY] = [x, y];
        }
        parts.at(-1).push([upper === "C" || upper === "Q" ? upper : upper === "M" && at === 0 ? "M" : "L", ...points]);
      }
    }
    return parts;
  }

  function boxOf(part) {
    const xs = part.flatMap(([, ...points]) => points.filter((_, place) => place % 2 === 0));
    const ys = part.flatMap(([, ...points]) => points.filter((_, place) => place % 2 === 1));
    return { x0: Math.min(...xs), x1: Math.max(...xs), y0: Math.min(...ys), y1: Math.max(...ys) };
  }

  /* Whether a part is an arrow's head or a marker, which keeps its shape: small, and not all along the axes. */
  function keepsShape(part, box, small) {
    if (box.x1 - box.x0 > small || box.y1 - box.y0 > small || part.length < 3) return false;
    return part.some(([command, x, y], place) => {
      if (command === "C" || command === "Q") return true;
      const [before, beforeX, beforeY] = part[place - 1] ?? [];
      return command === "L" && before !== "Z" && Math.abs(x - beforeX) > 0.1 && Math.abs(y - beforeY) > 0.1;
    });
  }

  const written = (part) => part.map(([command, ...points]) => command + points.map((value) => +value.toFixed(2)).join(" ")).join("");

  // ---- what is in a picture

  /* The elements that are drawn, each with how far the groups around it move it. */
  function* drawn(node, dx = 0, dy = 0) {
    for (const child of node.children) {
      if (["defs", "title", "style", "pattern"].includes(child.localName)) continue;
      if (child.localName !== "g") {
        yield { node: child, dx, dy };
        continue;
      }
      const [, x = 0, y = 0] = (child.getAttribute("transform") ?? "").match(/^translate\(([-\d.e]+)[ ,]*([-\d.e]+)?\)/) ?? [];
      yield* drawn(child, dx + Number(x), dy + Number(y));
    }
  }

  const inherited = (node, name) => node.closest(`[${name}]`)?.getAttribute(name);
  const number = (node, name) => Number(node.getAttribute(name) ?? 0);

  function textOf({ node, dx, dy }) {
    const inParts = node.firstElementChild?.localName === "tspan"; // a power of ten
    const size = parseFloat(inParts ? node.firstElementChild.getAttribute("font-size") : inherited(node, "font-size"));
    const [, moveX = 0, moveY = 0] = (node.getAttribute("transform") ?? "").match(/translate\(([-\d.e]+)[ ,]*([-\d.e]+)\)/) ?? [];
    const words = node.textContent.trim().replace(/\s+/g, " ");
    const bold = /bold|700/.test(inherited(node, "font-weight") ?? "");
    const central = inherited(node, "dominant-baseline") === "central";
    return {
      node, dx, dy, size, words, bold, inParts,
      x: number(node, "x") + dx + Number(moveX),
      y: number(node, "y") + dy + Number(moveY) + (central ? size * 0.35 : 0), // of the baseline
      anchor: inherited(node, "text-anchor") ?? "start",
      turned: /rotate/.test(node.getAttribute("transform") ?? ""),
      width: widthOf(words, size, bold),
      lines: [words],
      inLegend: Boolean(node.closest(".legend")),
    };
  }

  const leftOf = (text, x, width = text.width) => x - width * { start: 0, middle: 0.5, end: 1 }[text.anchor];

  /* Every mark as a box, with the way to draw it elsewhere. */
  function* marksOf({ node, dx, dy }, small) {
    if (node.localName === "rect") {
      const [x0, y0] = [number(node, "x") + dx, number(node, "y") + dy];
      yield { x0, y0, x1: x0 + number(node, "width"), y1: y0 + number(node, "height") };
    } else if (node.localName === "path") {
      for (const part of partsOf(node.getAttribute("d"))) {
        const box = boxOf(part);
        yield { x0: box.x0 + dx, x1: box.x1 + dx, y0: box.y0 + dy, y1: box.y1 + dy, rigid: keepsShape(part, box, small) };
      }
    } else if (node.localName === "line") {
      const xs = [number(node, "x1") + dx, number(node, "x2") + dx], ys = [number(node, "y1") + dy, number(node, "y2") + dy];
      yield { x0: Math.min(...xs), x1: Math.max(...xs), y0: Math.min(...ys), y1: Math.max(...ys) };
    } else if (node.localName === "use") {
      const [x, y] = [number(node, "x") + dx, number(node, "y") + dy];
      yield { x0: x - small / 4, x1: x + small / 4, y0: y - small / 4, y1: y + small / 4, rigid: true };
    }
  }

  /* The areas that marks fill, as boxes: the white grounds of axes, or all that lies in the group of marks. */
  function areasOf(svg, elements, marks, isPage, smallest) {
    const areas = [];
    if (svg.classList.contains("figure")) {
      for (const { node, dx } of elements) {
        if (node.localName !== "path" || node.getAttribute("fill") !== "#ffffff" || node.hasAttribute("stroke")) continue;
        const boxes = partsOf(node.getAttribute("d")).map(boxOf).map((box) => ({ ...box, x0: box.x0 + dx, x1: box.x1 + dx }));
        areas.push(...boxes.filter((box) => !isPage(box) && box.y1 - box.y0 > 2.5 * smallest && box.x1 - box.x0 > 0.8 * smallest));
      }
      for (const { node, dx } of elements) {
        const [x0, width] = [number(node, "x") + dx, number(node, "width")];
        if (node.localName === "image" && !areas.some((area) => area.x0 <= x0 + 1 && area.x1 >= x0 + width - 1)) areas.push({ x0, x1: x0 + width, y0: 0, y1: 0 });
      }
    }
    if (areas.length === 0) {
      const inside = marks.filter((mark) => mark.element.node.closest(".marks") ?? !svg.querySelector(".marks"));
      areas.push({
        x0: Math.min(...inside.map((mark) => mark.x0)), x1: Math.max(...inside.map((mark) => mark.x1)),
        y0: Math.min(...inside.map((mark) => mark.y0)), y1: Math.max(...inside.map((mark) => mark.y1)),
      });
    }
    return areas;
  }

  /* From where to where areas reach, across: these parts become narrower. */
  function spansOf(areas) {
    const joined = [];
    for (const { x0, x1 } of [...areas].sort((a, b) => a.x0 - b.x0)) {
      if (joined.length && x0 <= joined.at(-1)[1]) joined.at(-1)[1] = Math.max(x1, joined.at(-1)[1]);
      else joined.push([x0, x1]);
    }
    return joined;
  }

  const filledBy = (spans) => spans.reduce((sum, [from, to]) => sum + to - from, 0);

  /* Columns of numbers between marks, such as those of ranks at both ends of arrows: these keep their width. */
  function columnsOf(texts, marks, gap) {
    const columns = new Map();
    for (const text of texts) {
      if (text.mark || text.anchor === "middle" || !/^\d/.test(text.words)) continue;
      const key = `${text.anchor} ${text.x.toFixed(1)}`;
      columns.set(key, [...(columns.get(key) ?? []), text]);
    }
    const boxes = marks.filter((mark) => !mark.element.node.closest(".lines"));
    const kept = [];
    for (const column of columns.values()) {
      const from = Math.min(...column.map((text) => leftOf(text, text.x))) - gap;
      const to = Math.max(...column.map((text) => leftOf(text, text.x) + text.width)) + gap;
      const isBetween = boxes.some((mark) => mark.x1 <= from) && boxes.some((mark) => mark.x0 >= to);
      if (column.length > 1 && isBetween && !boxes.some((mark) => mark.x1 > from && mark.x0 < to)) kept.push([from, to]);
    }
    return kept;
  }

  /* Spans without these parts. */
  function without(spans, parts) {
    let left = spans;
    for (const [from, to] of parts) {
      left = left.flatMap(([start, end]) => [[start, Math.min(end, from)], [Math.max(start, to), end]].filter(([a, b]) => a < b));
    }
    return left;
  }

  /* Where a place goes when the areas keep this share of their width. */
  const across = (spans, share) => (x) =>
    x - spans.reduce((sum, [from, to]) => sum + (1 - share) * (Math.min(Math.max(x, from), to) - from), 0);

  function wrapped(words, room, size, bold) {
    const lines = [];
    for (const word of words.split(" ")) {
      const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
      if (lines.length && widthOf(longer, size, bold) <= room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  // ---- the layout

  /* How many of its units a picture may be wide on a page of so many pixels: small text is of one size in all pictures. */
  const targetOf = (svg, smallest, room) => (room * Math.min(smallest, svg.classList.contains("figure") ? 8 : 11)) / LEAST_TEXT_PX;

  /* Where the panels of a picture begin that stand side by side, each with names for the ticks of its own height. */
  function panelsOf(svg, wide, high) {
    const elements = [...drawn(svg)];
    const texts = elements.filter(({ node }) => node.localName === "text" && node.textContent.trim()).map(textOf);
    const smallest = Math.min(...texts.map((text) => text.size));
    const isPage = (box) => box.x1 - box.x0 > 0.98 * wide && box.y1 - box.y0 > 0.98 * high;
    const spans = spansOf(areasOf(svg, elements, [], isPage, smallest)).filter(([from, to]) => to - from > 0.2 * wide);
    const starts = [0];
    for (const [place, [from]] of spans.entries()) {
      const before = spans[place - 1]?.[1];
      if (before === undefined) continue;
      const ticks = texts.filter((text) => text.anchor === "end" && text.x > before && text.x < from);
      if (ticks.length < 2) return [0];
      const names = texts.filter((text) => text.turned && text.x > before && text.x < from).map((text) => text.x - text.size);
      starts.push(Math.min(...ticks.map((text) => leftOf(text, text.x)), ...names) - 3);
    }
    return starts;
  }

  /* Put the panels of a picture, which stand side by side, one below the other, each laid out by itself. */
  function stack(svg, starts, room) {
    const { width: wide, height: high } = svg.viewBox.baseVal;
    const panels = starts.map((from, place) => {
      const to = starts[place + 1] ?? wide;
      const panel = svg.cloneNode(true);
      panel.innerHTML = panel.innerHTML.replace(/(\bid="|url\(#|href="#)([\w-]+)/g, `$1$2-${place}`);
      const has = (x) => x >= from && x < to;
      for (const { node } of [...drawn(panel)]) {
        if (node.localName === "path") {
          const parts = partsOf(node.getAttribute("d")).filter((part) => {
            const box = boxOf(part);
            return has((box.x0 + box.x1) / 2) && box.x1 - box.x0 < 0.98 * wide;
          });
          if (parts.length) node.setAttribute("d", parts.map(written).join(""));
          else node.remove();
        } else if (!has(middleOf(node))) node.remove();
      }
      const group = document.createElementNS(SVG, "g");
      group.setAttribute("transform", `translate(${-from} 0)`);
      group.append(...[...panel.children].filter((child) => child.localName !== "defs"));
      const page = document.createElementNS(SVG, "path");
      page.setAttribute("d", `M0 0H${to - from}V${high}H0z`);
      page.setAttribute("fill", "#ffffff");
      panel.append(page, group);
      panel.dataset.shift = -from;
      panel.setAttribute("viewBox", `0 0 ${to - from} ${high}`);
      layOut(panel, room);
      return panel;
    });
    const page = Math.max(...panels.map((panel) => panel.viewBox.baseVal.width));
    let top = 0;
    for (const panel of panels) {
      const { width, height } = panel.viewBox.baseVal;
      for (const [name, value] of Object.entries({ x: 0, y: top, width, height })) panel.setAttribute(name, value);
      panel.removeAttribute("style");
      panel.removeAttribute("class"); // it is a part of a picture now
      top += height;
    }
    const ground = document.createElementNS(SVG, "path");
    ground.setAttribute("d", `M0 0H${page}V${top}H0z`);
    ground.setAttribute("fill", "#ffffff");
    svg.replaceChildren(ground, ...panels);
    svg.setAttribute("viewBox", `0 0 ${page} ${top}`);
    svg.setAttribute("width", room);
    svg.setAttribute("height", (room * top) / page);
  }

  /* Where the middle of an element is, across, that is no path. */
  function middleOf(node) {
    if (node.localName !== "text") return number(node, "x") + number(node, "width") / 2;
    const text = textOf({ node, dx: 0, dy: 0 });
    return text.turned ? text.x : leftOf(text, text.x) + text.width / 2;
  }

  /* Lay a picture out for a page of so many pixels, or leave it as it is if its texts can be read there. */
  function layOut(svg, room) {
    const { width: wide, height: high } = svg.viewBox.baseVal;
    const elements = [...drawn(svg)];
    const texts = elements.filter(({ node }) => node.localName === "text" && node.textContent.trim()).map(textOf);
    if (!texts.length) return;
    const smallest = Math.min(...texts.map((text) => text.size));
    const least = parseFloat(svg.style.getPropertyValue("--least-width")) || (SHRUNK_TEXT_PX * wide) / smallest;
    if (room >= least) return;
    if (svg.querySelector(".playing")) { // it stands still here, and plays where it is shown as it was drawn
      svg.querySelectorAll(".playing, style, set").forEach((node) => node.remove());
      layOut(svg, room);
      return;
    }
    const target = targetOf(svg, smallest, room);
    if (target >= wide) return;
    const starts = svg.classList.contains("figure") && svg.dataset.shift === undefined ? panelsOf(svg, wide, high) : [0];
    if (starts.length > 1) {
      stack(svg, starts, room);
      return;
    }
    const pad = smallest * 0.7, small = smallest * 1.6, gap = smallest * 0.35;

    const grounds = groundsOf(svg, texts);
    const isPage = (box) => box.x1 - box.x0 > 0.98 * wide && box.y1 - box.y0 > 0.98 * high;
    const marks = elements.filter(({ node }) => !grounds.has(node))
      .flatMap((element) => [...marksOf(element, small)].map((mark) => ({ ...mark, element }))).filter((mark) => !isPage(mark));
    const areas = areasOf(svg, elements, marks, isPage, smallest);
    let spans = spansOf(areas);
    const bottom = svg.classList.contains("figure") ? Math.max(...areas.map((area) => area.y1)) : Infinity;

    // The legend: in a group, or what begins below the areas
    for (const text of texts) text.inLegend ||= !text.turned && text.anchor === "start" && text.y > bottom + 2.2 * smallest && !text.bold;
    const legend = texts.filter((text) => text.inLegend);
    const legendTop = Math.min(...legend.map((text) => text.y - 1.5 * text.size));
    const plot = texts.filter((text) => !text.inLegend && !text.turned);
    const isArea = (mark) => areas.some((area) => area.x0 === mark.x0 && area.x1 === mark.x1 && area.y0 === mark.y0 && area.y1 === mark.y1);
    const ours = marks.filter((mark) => mark.y0 < legendTop && (svg.classList.contains("rankscope") || !isArea(mark)));
    const titles = plot.filter((text) => text.bold);
    for (const text of titles) { // of which each line is a text
      const before = titles.find((other) => other.gone === undefined && other.x === text.x && text.y - other.last > 1 && text.y - other.last < 1.6 * text.size);
      text.last = text.y;
      if (!before) continue;
      before.words += ` ${text.words}`;
      before.last = text.y;
      before.drawnLines = (before.drawnLines ?? 1) + 1;
      before.width = widthOf(before.words, before.size, true);
      text.gone = text.hidden = true;
    }

    // Which texts stand on a mark, and which next to all marks
    for (const text of plot) {
      const left = leftOf(text, text.x), right = left + text.width, middle = text.y - 0.35 * text.size;
      const around = ours.filter((mark) => !mark.rigid && mark.y0 < middle && middle < mark.y1
        && mark.x0 <= left + 1 && right - 1 <= mark.x1 && mark.y1 - mark.y0 < 0.9 * high);
      text.mark = around.sort((a, b) => (a.x1 - a.x0) - (b.x1 - b.x0))[0];
      if (text.mark && text.mark.x1 - text.mark.x0 > 0.9 * filledBy(spans) / spans.length && text.anchor !== "middle") text.mark = undefined;
      text.beside = text.anchor === "start" && !text.bold && !ours.some((mark) =>
        mark.x1 > left && mark.x0 < right && mark.y1 > text.y - text.size && mark.y0 < text.y && mark.x1 - mark.x0 < 0.9 * filledBy(spans));
    }

    if (svg.classList.contains("rankscope")) spans = without(spans, columnsOf(plot, ours, gap));
    const filled = filledBy(spans);

    // The largest share at which all that stands next to marks fits on the page
    let share = (target - (wide - filled)) / filled;
    for (const text of plot) {
      if (!text.beside || text.mark || text.width > 0.45 * target) continue;
      const before = spans.reduce((sum, [from, to]) => sum + Math.min(Math.max(text.x, from), to) - from, 0);
      if (before > 0.1 * filled) share = Math.min(share, (target - pad - text.width - (text.x - before)) / before);
    }
    share = Math.min(1, Math.max(share, LEAST_SHARE));
    const toX = across(spans, share);
    const page = Math.max(target, toX(wide) - Math.max(0, toX(wide) - target));
    const edge = page - pad;

    // Titles and long texts wrap, and move what is below them down
    const moves = []; // [below which baseline, by how much]
    function rowsOf(text, room, x, more = 0) {
      text.lines = wrapped(text.words, room, text.size, text.bold);
      text.at = x;
      text.width = Math.max(...text.lines.map((line) => widthOf(line, text.size, text.bold)));
      const added = text.lines.length - (text.drawnLines ?? 1);
      if (added || more) moves.push([text.last ?? text.y, added * LINE * text.size + more]);
    }
    for (const text of plot) text.at = text.beside ? toX(text.x - gap) + gap : text.anchor === "end" ? toX(text.x + gap) - gap : toX(text.x);
    for (const text of plot) {
      if (text.mark || text.hidden) continue;
      const sameRow = plot.filter((other) => other !== text && other.x > text.x + 1 && Math.abs(other.y - text.y) < text.size && !other.mark);
      let until = edge;
      if (text.bold || text.anchor === "start") {
        const next = Math.min(Infinity, ...sameRow.map((other) => leftOf(other, other.at)));
        if (next - gap > text.at + 3 * text.size && next > text.at) until = Math.min(edge, next - gap);
      }
      if (text.bold) {
        const alone = !titles.some((other) => other !== text && Math.abs(other.y - text.y) < text.size);
        const left = alone ? pad : text.at;
        rowsOf(text, until - left, left, left < toX(text.x) - 1 ? 0.35 * text.size : 0); // over ticks now
      } else if (text.anchor === "start" && text.at + text.width > until) {
        const room = until - text.at;
        if (text.words.includes(" ") && room > 6 * text.size) rowsOf(text, room, text.at);
        else text.at = Math.max(pad, edge - text.width);
      } else if (text.anchor === "middle") {
        const before = plot.filter((other) => other.anchor === "end" && Math.abs(other.y - text.y) < 2.2 * text.size && other.x < leftOf(text, text.x));
        const from = Math.max(pad, ...before.map((other) => toX(other.x) + gap));
        if (text.width > edge - from) rowsOf(text, edge - from, (edge + from) / 2);
        const left = leftOf(text, text.at);
        text.at += Math.max(0, from - left) - Math.max(0, left + text.width - edge);
      }
      if (!text.bold) {
        const left = leftOf(text, text.at);
        text.at += Math.max(0, Math.min(pad / 2 - left, edge - left - text.width)) - Math.max(0, left + text.width - edge);
      }
    }
    // Rows of ticks keep each one, each second one, …
    const rows = new Map();
    for (const text of plot) {
      if (text.anchor !== "middle" || text.mark || text.lines.length > 1 || text.hidden) continue;
      const y = Math.round(text.y);
      rows.set(y, [...(rows.get(y) ?? []), text]);
    }
    for (const row of rows.values()) {
      row.sort((a, b) => a.at - b.at);
      const clear = (step) => row.filter((_, place) => place % step === 0).every((text, place, kept) =>
        place === 0 || leftOf(text, text.at) - leftOf(kept[place - 1], kept[place - 1].at) - kept[place - 1].width > gap);
      const step = [1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 64].find(clear) ?? row.length;
      row.forEach((text, place) => { text.hidden = row.length > 1 && place % step !== 0; });
    }
    // What stands on a mark has room there, or its last word has, or it goes
    for (const text of plot) {
      if (!text.mark || text.hidden) continue;
      const { x0, x1 } = withFreeNeighbours(text, ours, plot);
      const inside = toX(x1) - toX(x0) - 0.2 * text.size;
      const short = text.words.split(" ").at(-1);
      if (text.width <= inside) continue;
      text.words = short;
      text.width = widthOf(short, text.size, text.bold);
      text.lines = [short];
      text.hidden = text.width > inside || !/^\d/.test(short);
    }
    const down = (y) => byRow(moves).reduce((sum, [below, by]) => sum + (y > below + ROW ? by : 0), y);

    // No text on another: titles, axes and what stands on marks first
    const kept = [];
    const rank = (text) => (text.bold ? 0 : text.anchor === "end" ? 1 : text.mark ? 3 : 2);
    for (const text of [...plot].sort((a, b) => rank(a) - rank(b))) {
      if (text.hidden) continue;
      const left = leftOf(text, text.at), y = down(text.y);
      const box = { x0: left, x1: left + text.width, y0: y - 0.75 * text.size, y1: y + ((text.lines.length - 1) * LINE + 0.1) * text.size };
      const onOther = kept.some((other) => box.x0 < other.x1 + 0.1 * text.size && other.x0 < box.x1 + 0.1 * text.size && box.y0 < other.y1 && other.y0 < box.y1);
      if (onOther && !text.bold) text.hidden = true;
      else kept.push(box);
    }

    // Draw
    const entries = flowed(legend, marks.filter((mark) => mark.y0 >= legendTop - 1), page, pad);
    const lowestPlot = Math.min(legendTop, high);
    let newHigh = down(high);
    if (entries.height) newHigh = down(lowestPlot) + entries.height + 0.6 * smallest;
    for (const element of elements) {
      const { node } = element;
      if (node.localName === "text") continue;
      const entry = entries.of.get(node);
      const text = grounds.get(node);
      if (entry) moveBy(element, ...entry.by(down(lowestPlot)));
      else if (text) {
        if (text.hidden || text.lines.length > 1) node.remove();
        else moveBy(element, text.at - text.x, down(text.y) - text.y);
      } else redraw(element, toX, down, small, { wide, high, page, newHigh });
    }
    for (const text of plot) place(text, text.at, down(text.y));
    for (const text of texts) {
      if (!text.turned) continue;
      const above = plot.filter((title) => title.bold && !title.gone && title.y < text.y);
      const top = Math.max(0, ...above.map((title) => down(title.y) + (title.lines.length - 1) * LINE * title.size + gap));
      turn(text, toX(text.x), Math.max(down(text.y), text.anchor === "middle" ? top + text.width / 2 : 0));
    }
    for (const text of legend) place(text, text.at, text.entry.top(down(lowestPlot)));
    for (const rect of svg.querySelectorAll("clipPath > rect")) redraw({ node: rect, dx: Number(svg.dataset.shift ?? 0), dy: 0 }, toX, down, small, {});
    svg.setAttribute("viewBox", `0 0 ${page} ${newHigh}`);
    svg.setAttribute("width", room);
    svg.setAttribute("height", (room * newHigh) / page);
  }

  /* The mark on which a text stands, with those next to it that look the same and have no text. */
  function withFreeNeighbours({ mark }, marks, texts) {
    let { x0, x1 } = mark;
    const free = marks.filter((other) => other.element === mark.element && other !== mark && other.y0 === mark.y0 && other.y1 === mark.y1
      && !texts.some((text) => text.mark === other));
    for (let grown = true; grown;) {
      const next = free.find((other) => Math.abs(other.x0 - x1) < 0.3 || Math.abs(other.x1 - x0) < 0.3);
      grown = next !== undefined;
      if (grown) {
        free.splice(free.indexOf(next), 1);
        [x0, x1] = [Math.min(x0, next.x0), Math.max(x1, next.x1)];
      }
    }
    return { x0, x1 };
  }

  /* The box behind a text that has one of its own, with the text. */
  function groundsOf(svg, texts) {
    const grounds = new Map();
    if (!svg.classList.contains("figure")) return grounds;
    for (const text of texts) {
      const before = text.node.previousElementSibling;
      if (before?.localName !== "path" || before.hasAttribute("stroke") || text.turned) continue;
      const parts = partsOf(before.getAttribute("d"));
      const box = boxOf(parts[0]);
      const isBehind = Math.abs(box.x0 + text.dx - leftOf(text, text.x)) < text.size && Math.abs(box.x1 - box.x0 - text.width) < 2 * text.size
        && box.y1 - box.y0 < 2.5 * text.size && box.y0 < text.y && text.y < box.y1 + 1;
      if (parts.length === 1 && isBehind) grounds.set(before, text);
    }
    return grounds;
  }

  /* Of several texts that wrap in one row, the one with most lines counts. */
  function byRow(moves) {
    const most = new Map();
    for (const [below, by] of moves) {
      const near = [...most.keys()].find((y) => Math.abs(y - below) < ROW) ?? below;
      most.set(near, Math.max(by, most.get(near) ?? 0));
    }
    return [...most];
  }

  /* The entries of a legend, one after the other in rows. */
  function flowed(legend, marks, page, pad) {
    const of = new Map();
    if (!legend.length) return { of, height: 0 };
    const size = legend[0].size, high = 1.9 * size;
    const entries = [...legend].sort((a, b) => (Math.abs(a.y - b.y) < 3 ? a.x - b.x : a.y - b.y)).map((text) => {
      const before = legend.filter((other) => Math.abs(other.y - text.y) < 3 && other.x < text.x).map((other) => other.x + other.width);
      const from = Math.max(-Infinity, ...before);
      const own = marks.filter((mark) => mark.x0 >= from - 1 && mark.x1 <= text.x + 1 && mark.y0 < text.y + 0.5 * size && mark.y1 > text.y - 1.5 * size);
      return { text, own, left: Math.min(text.x, ...own.map((mark) => mark.x0)) };
    });
    let [x, row] = [pad, 0];
    for (const entry of entries) {
      const { text, left, own } = entry;
      const head = text.x - left;
      if (x > pad && x + head + text.width > page - pad) [x, row] = [pad, row + 1];
      text.lines = wrapped(text.words, page - pad - x - head, text.size, false);
      text.width = Math.max(...text.lines.map((line) => widthOf(line, text.size, false)));
      const [at, line] = [x, row];
      text.at = at + head;
      entry.top = (top) => top + 1.5 * size + line * high;
      text.entry = entry;
      const by = (top) => [at - left, entry.top(top) - text.y];
      for (const mark of own) of.set(mark.element.node, { by });
      x += head + text.width + 1.6 * size;
      row += (text.lines.length - 1) * 0.7;
    }
    return { of, height: (row + 1) * high + 0.4 * size };
  }

  const rounded = (value) => `${+value.toFixed(2)}`;

  function moveBy({ node }, x, y) {
    const before = node.getAttribute("transform") ?? "";
    node.setAttribute("transform", `translate(${rounded(x)} ${rounded(y)}) ${before}`);
  }

  function place(text, x, y) {
    const { node, dx, dy, size, lines } = text;
    if (text.hidden) {
      node.remove();
      return;
    }
    if (text.inParts) {
      moveBy(text, x - text.x, y - text.y);
      return;
    }
    node.removeAttribute("transform"); // what it says is in x and y
    const central = inherited(node, "dominant-baseline") === "central";
    const [left, top] = [rounded(x - dx), y - dy - (central ? size * 0.35 : 0)];
    node.setAttribute("x", left);
    node.setAttribute("y", rounded(top));
    if (lines.length === 1) {
      if (node.textContent !== lines[0]) node.textContent = lines[0];
      return;
    }
    node.textContent = "";
    lines.forEach((line, number) => {
      const span = document.createElementNS(SVG, "tspan");
      span.setAttribute("x", left);
      span.setAttribute("y", rounded(top + number * LINE * size));
      span.textContent = number ? line : `${line} `;
      node.append(span);
    });
  }

  function turn({ node, dx, dy }, x, y) {
    const before = node.getAttribute("transform");
    const [, turned] = before.match(/rotate\((-?[\d.]+)/);
    const [left, top] = [rounded(x - dx), rounded(y - dy)];
    if (/translate/.test(before)) node.setAttribute("transform", `translate(${left} ${top}) rotate(${turned})`);
    else {
      node.setAttribute("x", left);
      node.setAttribute("y", top);
      node.setAttribute("transform", `rotate(${turned} ${left} ${top})`);
    }
  }

  /* A mark where it belongs now, with a page's new size. */
  function redraw({ node, dx, dy }, toX, toY, small, { wide, high, page, newHigh }) {
    const set = (name, value) => node.setAttribute(name, rounded(value));
    const x = (value) => toX(value + dx) - dx, y = (value) => toY(value + dy) - dy;
    if (node.localName === "rect") {
      const [x0, y0, width, height] = ["x", "y", "width", "height"].map((name) => number(node, name));
      if (wide && width > 0.98 * wide && height > 0.98 * high) {
        set("width", page);
        set("height", newHigh);
        return;
      }
      set("x", x(x0));
      set("y", y(y0));
      set("width", Math.max(0, x(x0 + width) - x(x0)));
      set("height", y(y0 + height) - y(y0));
    } else if (node.localName === "line") {
      for (const [name, to] of [["x1", x], ["x2", x], ["y1", y], ["y2", y]]) set(name, to(number(node, name)));
    } else if (node.localName === "use") {
      set("x", x(number(node, "x")));
      set("y", y(number(node, "y")));
    } else if (node.localName === "image") {
      const [x0, y0, width, height] = ["x", "y", "width", "height"].map((name) => number(node, name));
      const flipped = (node.getAttribute("transform") ?? "").match(/scale\(1 -1\) translate\(0 (-[\d.]+)\)/);
      set("x", x(x0));
      set("width", x(x0 + width) - x(x0));
      node.setAttribute("preserveAspectRatio", "none");
      if (flipped) {
        const top = -(Number(flipped[1]) + y0 + height);
        node.setAttribute("transform", `scale(1 -1) translate(0 ${rounded(Number(flipped[1]) - (y(top) - top))})`);
      } else set("y", y(y0));
    } else if (node.localName === "path") {
      const parts = partsOf(node.getAttribute("d")).map((part) => {
        const box = boxOf(part);
        if (wide && box.x1 - box.x0 > 0.98 * wide && box.y1 - box.y0 > 0.98 * high) return [["M", 0, newHigh], ["L", page, newHigh], ["L", page, 0], ["L", 0, 0], ["Z"]];
        const [middleX, middleY] = [(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2];
        const rigid = keepsShape(part, box, small);
        return part.map(([command, ...points]) => [command, ...points.map((value, place) => {
          if (place % 2) return rigid ? value + y(middleY) - middleY : y(value);
          return rigid ? value + x(middleX) - middleX : x(value);
        })]);
      });
      node.setAttribute("d", parts.map(written).join(""));
    }
  }

  // ---- pictures of a page

  const asDrawn = new WeakMap();

  /* Show a picture as it was drawn, whatever has been made of it. */
  function restore(svg) {
    const before = asDrawn.get(svg);
    if (!before) {
      asDrawn.set(svg, { inner: svg.innerHTML, viewBox: svg.getAttribute("viewBox"), width: svg.getAttribute("width"), height: svg.getAttribute("height") });
    } else if (before.room) {
      svg.innerHTML = before.inner;
      for (const name of ["viewBox", "width", "height"]) svg.setAttribute(name, before[name]);
      before.room = 0;
    }
    return asDrawn.get(svg);
  }

  /* Fit a picture into so many pixels. */
  function fit(svg, room) {
    if (room <= 0 || asDrawn.get(svg)?.room === room) return;
    const state = restore(svg);
    if (room >= Number(state.width)) return;
    layOut(svg, room);
    state.room = svg.getAttribute("width") === state.width ? 0 : room;
  }

  /* Whether a picture that plays stands still because it was laid out anew. */
  const isStill = (svg) => Boolean(asDrawn.get(svg)?.room && /class="playing"/.test(asDrawn.get(svg).inner));

  return { fit, restore, isStill, ownWidth: (svg) => Number(asDrawn.get(svg)?.width ?? svg.getAttribute("width")) };
})();
