"""What is wrong with the pictures of a page as a browser shows them: text that is small, cut or on other text."""

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
        boxes.push({words, x0: box.left + 0.5, x1: box.right - 0.5, y0: box.top + air, y1: box.bottom - air});
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
