"""What is wrong with the pictures of a page as a browser shows them: text that is small, cut, or on text or arrows."""

from __future__ import annotations

LEAST_TEXT_PX = 8

# Opens what is folded, so that its pictures are laid out, and waits until they are.
UNFOLDED = """async () => {
  document.querySelectorAll("details").forEach(part => part.open = true);
  for (let frame = 0; frame < 4; frame++) await new Promise(requestAnimationFrame);
}"""

# {seen: how many lines of text were measured, faults: a sentence each}. What moves in a picture that plays is left out.
PICTURE_FAULTS = """least => {
  const faults = [];
  let seen = 0;
  for (const picture of document.querySelectorAll(".content svg:is(.figure, .rankscope)")) {
    const page = picture.getBoundingClientRect();
    if (!page.width) continue;
    const room = picture.parentElement.getBoundingClientRect().width;
    if (page.width > room + 1) faults.push(`a picture of ${page.width} px is wider than its box of ${room} px`);
    const boxes = [];
    for (const text of picture.querySelectorAll("text")) {
      if (text.closest(".playing") || !text.checkVisibility({visibilityProperty: true})) continue;
      if (!text.textContent.trim() || !text.getBoundingClientRect().width) continue;
      const parts = [...text.children];
      const isWrapped = parts.length && parts.every(part => part.getAttribute("x") === text.getAttribute("x"));
      for (const line of isWrapped ? parts : [text]) {
        const box = line.getBoundingClientRect(), words = line.textContent.trim();
        const size = parseFloat(getComputedStyle(line).fontSize) * line.ownerSVGElement.getScreenCTM().a;
        seen += 1;
        if (size < least - 0.05) faults.push(`“${words}” has letters of ${size.toFixed(1)} px`);
        const beyond = [page.left - box.left, box.right - page.right, page.top - box.top, box.bottom - page.bottom];
        if (Math.max(...beyond) > 2) faults.push(`“${words}” is cut`);
        const air = Math.min(box.width, box.height) / 4; // a box is higher than its letters
        const hasHalo = Boolean(text.getAttribute("stroke"));
        const [x0, x1, y0, y1] = [box.left + 0.5, box.right - 0.5, box.top + air, box.bottom - air];
        boxes.push({words, hasHalo, height: box.height, x0, x1, y0, y1});
      }
    }
    for (const line of picture.querySelectorAll("g.lines:has(path[d*=Z]) line")) { // lines with the heads of arrows
      const [x0, y0, x1, y1] = ["x1", "y1", "x2", "y2"].map(name => line[name].baseVal.value);
      for (let part = 0; part <= 1; part += 1 / 64) {
        const at = new DOMPoint(x0 + part * (x1 - x0), y0 + part * (y1 - y0)).matrixTransform(line.getScreenCTM());
        const struck = boxes.find(box => box.x0 < at.x && at.x < box.x1 && box.y0 < at.y && at.y < box.y1);
        if (!struck) continue;
        faults.push(`an arrow crosses “${struck.words}”`);
        break;
      }
    }
    for (const rect of picture.querySelectorAll(".marks rect")) {
      const bar = rect.getBoundingClientRect();
      if (rect.closest(".playing") || !bar.width) continue;
      for (const box of boxes) { // on a mark that is higher than its letters a text is well placed
        const isGround = bar.height >= 0.8 * box.height && bar.top <= box.y0 + 1 && bar.bottom >= box.y1 - 1;
        const across = Math.min(bar.right, box.x1) - Math.max(bar.left, box.x0);
        const down = Math.min(bar.bottom, box.y1) - Math.max(bar.top, box.y0);
        if (!isGround && !box.hasHalo && bar.height > 2 && across > 1 && down > 1) {
          faults.push(`the edge of a bar crosses “${box.words}”`);
        }
      }
    }
    boxes.forEach((box, place) => boxes.slice(place + 1).forEach(other => {
      const across = Math.min(box.x1, other.x1) - Math.max(box.x0, other.x0);
      const down = Math.min(box.y1, other.y1) - Math.max(box.y0, other.y0);
      if (across > 0.5 && down > 0.5) faults.push(`“${box.words}” lies on “${other.words}”`);
    }));
  }
  return {seen, faults};
}"""
