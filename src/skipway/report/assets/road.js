// Draws each stream map: a cell for every unit, the road running through all of them, and reads a cell out when it is
// pointed at or focused. A unit's row in the data: form, shape, label, level, proved, width, gradient level, share,
// then the texts rms, share, cosine, alike, gradient, how many units it stands for, and its number among the units (of
// what stands between two of them, the number of the first).
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  // Of a cell, in pixels: margin beside the arch, least span of the arch, sign, and how far scaled strokes are.
  const SIZES = {
    large: { y: 74, lane: 46, high: 44, margin: 11, span: 38, sign: 19, gap: 3, scale: 1, join: 4.5 },
    medium: { y: 50, lane: 30, high: 30, margin: 6, span: 22, sign: 14, gap: 2, scale: .8, join: 3.4 },
    small: { y: 34, lane: 21, high: 20, margin: 2.5, span: 12, sign: 12, gap: 1, scale: .62, join: 0 },
  };
  // Where no branch leads around, nothing stands above the road.
  const BARE = { large: 26, medium: 20, small: 16 };
  const NAMES = { long_skip: "long skip", injection: "injection", cell: "cell", merge: "merge" };
  // What has no branch that leads around.
  const bare = (form) => form.kind === "layer" || form.kind === "between";
  const kindName = (kind) => kind.replace("_", "-");

  function make(tag, attributes, parent) {
    const element = document.createElementNS(SVG, tag);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (parent) parent.appendChild(element);
    return element;
  }
  function html(tag, className, text, parent) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  // A chain of operations may be broken behind each dot.
  function chain(tag, className, text, parent) {
    const element = html(tag, className, undefined, parent);
    text.split("·").forEach((piece, k, all) => {
      element.append(k < all.length - 1 ? `${piece}·` : piece);
      if (k < all.length - 1) element.append(document.createElement("wbr"));
    });
    return element;
  }

  function cell(row, form, size, proofs) {
    const [, , , level, proved, width, gradient, share] = row;
    const inner = level > 0;
    const y = inner ? size.lane : size.y;
    const high = inner ? size.high * .62 : size.high;
    const step = size.sign + size.gap;
    const arch = bare(form) ? 0 : Math.max(size.span, form.shortcut.length * step + size.gap + 2 * size.join);
    const total = 2 * size.margin + arch + form.after.length * step + (form.after.length && arch ? size.join : 0);
    const element = html("div", `unit${inner ? " inner" : ""}${gradient === null ? "" : ` g${gradient}`}`);
    if (width !== null) element.style.setProperty("--w", `${(width * size.scale).toFixed(1)}px`);
    const svg = make("svg", { width: total, height: size.y + 18 });
    const left = size.margin, right = left + arch;
    if (arch) {
      const stroke = (1 + 6 * (share === null ? .08 : Math.min(Math.max(share, 0), 1))) * size.scale;
      const top = y - high * 1.34, foot = (y - Math.max((width === null ? 7 : width) * size.scale / 2 - 1, 0)).toFixed(1);
      make("path", {
        d: `M${left} ${foot}C${left} ${top} ${right} ${top} ${right} ${foot}`, "stroke-width": stroke.toFixed(1),
        class: form.kind === "unit" ? "arch" : "arch other",
      }, svg);
      if (size.scale === 1 && form.letters.length) {
        const text = form.letters.join("+"), wide = 8 + 7 * text.length;
        make("rect", { x: (left + right - wide) / 2, y: y - high - 8, width: wide, height: 17, rx: 4, class: "plate" }, svg);
        make("text", { x: (left + right) / 2, y: y - high + 4.5, class: "letter" }, svg).textContent = text;
      }
    }
    const plate = (obstacle, x) => make("use", {
      href: `#sign-${obstacle[0]}`, x: x - size.sign / 2, y: y - size.sign / 2, width: size.sign, height: size.sign,
    }, svg);
    const middle = (left + right) / 2;
    form.shortcut.forEach((o, k) => plate(o, middle + (k - (form.shortcut.length - 1) / 2) * step));
    const doubt = proofs && !proved && !bare(form);
    if (arch && (size.join || doubt)) make("circle", { cx: right, cy: y, r: size.join || 2.5, class: doubt ? "join doubt" : "join" }, svg);
    const behind = right + (arch ? size.join + size.gap : size.gap) + size.sign / 2;
    form.after.forEach((o, k) => plate(o, behind + k * step));
    element.appendChild(svg);
    element.style.minWidth = `${total}px`;
    return [element, total];
  }

  // Where a road inside a branch leaves the main road, and where it comes back.
  function ramps(cells, rows, size) {
    rows.forEach((row, k) => {
      const before = k ? rows[k - 1][3] : 0;
      if (!row[3] === !before) return;
      const ramp = make("svg", { class: "ramp", width: 12, height: size.y + 10 });
      const [from, to] = row[3] ? [size.y, size.lane] : [size.lane, size.y];
      make("path", { d: `M0 ${from}C8 ${from} 4 ${to} 12 ${to}`, fill: "none", stroke: "var(--none)", "stroke-width": 3 }, ramp);
      cells[k].appendChild(ramp);
    });
  }

  // Names under the road: of every unit where there is room, else where the shape changes, and every tenth number.
  function tags(cells, rows, widths, large) {
    const PER_LETTER = 6.4;
    const paths = rows.map((row) => row[2].split("."));
    // What all paths begin with says nothing; two names of each are kept.
    let common = 0;
    while (paths.every((path) => path.length > common + 2 && path[common] === paths[0][common])) common += 1;
    const labels = paths.map((path) => path.slice(common).join("."));
    const cut = (text, most) => (text.length > most ? `…${text.slice(1 - most)}` : text);
    let free = 0, at = 0;
    rows.forEach((row, k) => {
      if (large) {
        html("span", "tag", cut(labels[k], Math.max(4, Math.floor(widths[k] / PER_LETTER))), cells[k]);
      } else {
        const stage = k === 0 || (row[1] !== rows[k - 1][1] && row[3] === 0);
        const tenth = row[14] % 10 === 0 && (!k || rows[k - 1][14] !== row[14]);
        const text = stage ? cut(labels[k], 20) : String(row[14]);
        if ((stage || tenth) && at >= free) {
          html("span", stage ? "tag stage" : "tag", text, cells[k]);
          free = at + text.length * PER_LETTER + 12;
        }
      }
      at += widths[k];
    });
  }

  function number(data, row, form) {
    if (form.kind === "between") return `between ${data.noun}s ${row[14]} and ${row[14] + 1} of ${data.count}`;
    return `${data.noun} ${row[14]} of ${data.count}`;
  }

  function inWords(data, row) {
    const form = data.forms[row[0]];
    const stands = [...form.shortcut, ...form.after].map((o) => `${kindName(o[0])} ${o[1]}`);
    const numbers = [["stream rms", 8], ["branch share", 9], ["gradient", 12]].filter(([, at]) => row[at] !== "–");
    return [
      `${number(data, row, form)}, ${row[2]}`, form.kind === "layer" ? "" : form.equation,
      stands.length ? `on the road: ${stands.join(", ")}` : "clean road",
      row[3] ? `inside a branch, level ${row[3]}` : "", data.proofs && !row[4] && !bare(form) ? "not proved" : "",
      ...numbers.map(([name, at]) => `${name} ${row[at]}`),
    ].filter(Boolean).join("; ");
  }

  function read(glass, data, k) {
    const row = data.units[k], form = data.forms[row[0]];
    glass.textContent = "";
    glass.classList.add("open");
    const who = html("div", "who", undefined, glass);
    html("b", "", row[2], who);
    html("span", "", `${number(data, row, form)}${row[13] > 1 ? ` (${row[13]} alike)` : ""}`, who);
    if (data.shapes[row[1]]) html("span", "", data.shapes[row[1]], who);
    if (NAMES[form.kind]) html("span", "", NAMES[form.kind], who);
    if (row[3]) html("span", "", `inside a branch, level ${row[3]}`, who);
    if (data.proofs && !row[4] && !bare(form)) html("span", "", "not proved", who);
    if (form.kind !== "layer") chain("div", "equation", `x' = ${form.equation}`, glass);
    for (const letter of new Set(form.letters)) chain("div", "with mono", `${letter} = ${data.branches[letter]}`, glass);
    const stands = html("div", "stands", undefined, glass);
    const signs = [...form.shortcut, ...form.after];
    if (!signs.length) html("span", "clear", "clean: nothing stands on the road", stands);
    for (const [kind, name] of signs) {
      const entry = html("span", "", undefined, stands);
      const svg = make("svg", { class: "sign", viewBox: "0 0 24 24" }, entry);
      make("use", { href: `#sign-${kind}` }, svg);
      html("span", "", form.kind === "layer" ? "a weight, and no way around it" : `${kindName(kind)} ${name}`, entry);
    }
    const list = html("dl", "", undefined, glass);
    const names = ["stream rms", "branch share", "cosine", "alike", "gradient"];
    names.forEach((name, at) => {
      if (row[8 + at] === "–") return;
      const pair = html("div", "", undefined, list);
      html("dt", "", name, pair);
      html("dd", "", row[8 + at], pair);
    });
  }

  // The glass stands under the unit that it reads, or above it where the window ends.
  function place(map, glass, cell) {
    const frame = map.getBoundingClientRect(), box = cell.getBoundingClientRect(), own = glass.getBoundingClientRect();
    const middle = box.left + box.width / 2 - own.width / 2;
    glass.style.left = `${Math.max(0, Math.min(middle, frame.right - own.width) - frame.left)}px`;
    const below = box.bottom + 4 + own.height <= innerHeight || box.top - 4 - own.height < 0;
    glass.style.top = `${(below ? box.bottom + 4 : box.top - 4 - own.height) - frame.top}px`;
  }

  function draw(map) {
    const data = JSON.parse(map.querySelector("script.data").textContent);
    const road = map.querySelector(".road"), glass = map.querySelector(".glass");
    const count = data.units.length;
    const name = count <= 40 ? "large" : count <= 160 ? "medium" : "small";
    const bare = data.noun === "layer";
    const size = bare ? { ...SIZES[name], y: BARE[name] } : SIZES[name];
    map.classList.add(name);
    map.classList.toggle("bare", bare);
    const cells = [], widths = [];
    data.units.forEach((row, k) => {
      const [element, width] = cell(row, data.forms[row[0]], size, data.proofs);
      element.setAttribute("role", "option");
      element.setAttribute("aria-label", inWords(data, row));
      element.setAttribute("aria-selected", "false");
      element.tabIndex = k ? -1 : 0;
      element.dataset.k = k;
      cells.push(element);
      widths.push(width);
    });
    ramps(cells, data.units, size);
    tags(cells, data.units, widths, name === "large");
    const end = (text, which, like, stands) => {
      const element = html("div", `end ${which} ${like.className.replace(/unit|inner/g, "")}`);
      element.setAttribute("role", "presentation");
      element.style.cssText = like.style.cssText;
      element.style.minWidth = "";
      if (stands) element.title = stands;
      html("span", "", text, element).setAttribute("aria-hidden", "true");
      return element;
    };
    const all = document.createDocumentFragment();
    all.append(end("input", "first", cells[0], data.ends[0]), ...cells, end("output", "last", cells[count - 1], data.ends[1]));
    road.appendChild(all);
    listen(map, road, glass, data, cells);
    new ResizeObserver(() => settle(road)).observe(road);
  }

  // A name that would run over the end of its row stands to the left of it, in place of a number there.
  function settle(road) {
    const all = [...road.querySelectorAll(".tag")], end = road.getBoundingClientRect().right - 16;
    all.forEach((tag) => tag.classList.remove("back", "hidden"));
    const over = all.map((tag) => tag.classList.contains("stage") && tag.getBoundingClientRect().right > end);
    all.forEach((tag, k) => tag.classList.toggle("back", over[k]));
    over.forEach((isOver, k) => {
      if (!isOver || !k) return;
      const box = all[k].getBoundingClientRect(), before = all[k - 1].getBoundingClientRect();
      all[k - 1].classList.toggle("hidden", before.right > box.left - 6 && Math.abs(before.top - box.top) < 4);
    });
  }

  function listen(map, road, glass, data, cells) {
    let current = 0;
    const mark = (k) => {
      cells[current].classList.remove("at");
      cells[current].tabIndex = -1;
      cells[current].setAttribute("aria-selected", "false");
      current = k;
      cells[k].classList.add("at");
      cells[k].tabIndex = 0;
      cells[k].setAttribute("aria-selected", "true");
      read(glass, data, k);
      place(map, glass, cells[k]);
    };
    const close = () => glass.classList.remove("open");
    const at = (event) => {
      const found = event.target.closest && event.target.closest(".unit");
      return found ? Number(found.dataset.k) : null;
    };
    const go = (k) => cells[Math.min(Math.max(k, 0), cells.length - 1)].focus();
    // The unit of the row above or below that lies nearest.
    const across = (direction) => {
      const here = cells[current].getBoundingClientRect(), x = here.left + here.width / 2;
      let best = null, distance = Infinity, row = null;
      for (let k = current + direction; cells[k]; k += direction) {
        const box = cells[k].getBoundingClientRect();
        if (Math.abs(box.top - here.top) < 2) continue;
        if (row === null) row = box.top;
        if (Math.abs(box.top - row) > 2) break;
        const away = Math.abs(box.left + box.width / 2 - x);
        if (away < distance) [best, distance] = [k, away];
      }
      if (best !== null) go(best);
    };
    const keys = {
      ArrowRight: () => go(current + 1), ArrowLeft: () => go(current - 1), ArrowDown: () => across(1), ArrowUp: () => across(-1),
      Home: () => go(0), End: () => go(cells.length - 1), PageDown: () => go(current + 10), PageUp: () => go(current - 10),
    };
    road.addEventListener("pointerover", (event) => { const k = at(event); if (k !== null) mark(k); });
    road.addEventListener("pointerleave", () => { if (!road.contains(document.activeElement)) close(); });
    road.addEventListener("focusout", (event) => { if (!road.contains(event.relatedTarget)) close(); });
    road.addEventListener("focusin", (event) => { const k = at(event); if (k !== null) mark(k); });
    road.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      const move = event.altKey || event.ctrlKey || event.metaKey ? undefined : keys[event.key];
      if (move) { event.preventDefault(); move(); }
    });
  }

  document.querySelectorAll(".map").forEach(draw);
  performance.mark("roads");
})();
