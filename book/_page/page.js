// What scrolls inside the page must be reachable from the keyboard.
(() => {
  const boxes = ".bd-article pre, .bd-article table, .bd-article div.math, .bd-article .output";
  const TALL = 900;  // pixels

  function reach() {
    for (const box of document.querySelectorAll(boxes)) {
      const isTall = box.matches("table:not(.long, .strip, .one-model)") && box.offsetHeight > TALL;
      if (isTall) lengthen(box);
      const isLong = box.matches(".long") && box.scrollHeight > box.clientHeight;
      const scrolls = (isLong || box.scrollWidth > box.clientWidth) && /auto|scroll/.test(getComputedStyle(box).overflow);
      if (scrolls) box.tabIndex = 0;
      else if (box.tabIndex === 0) box.removeAttribute("tabindex");
      fade(box);
    }
  }
  // A tall table scrolls below its titles, and one of many rows says how many.
  function lengthen(table) {
    const n = table.tBodies[0].rows.length;
    table.classList.add("long");
    if (n > 10) table.before(Object.assign(document.createElement("p"), { className: "row-count", textContent: `${n} rows` }));
  }
  // What goes on to the right fades there.
  function fade(box) {
    const isMore = box.scrollWidth - box.clientWidth - box.scrollLeft > 2 && /auto|scroll/.test(getComputedStyle(box).overflowX);
    box.classList.toggle("goes-on", isMore);
  }
  document.addEventListener("scroll", ({ target }) => { if (target.matches?.(boxes)) fade(target); }, { capture: true, passive: true });
  // A long table of models shows one of them, which the reader chooses. Printed it is whole.
  function choose(table) {
    const groups = new Map();
    let name = "";
    for (const row of table.tBodies[0].rows) {
      name = row.querySelector("th.level0")?.textContent ?? name;
      groups.set(name, [...(groups.get(name) ?? []), row]);
    }
    const label = Object.assign(document.createElement("label"), { className: "model-chooser", textContent: "model " });
    const select = document.createElement("select"), names = [...groups.keys()];
    select.append(...["all", ...names].map((text) => new Option(text)));
    const show = () => groups.forEach((rows, of) => rows.forEach((row) => { row.hidden = select.value !== "all" && select.value !== of; }));
    select.value = names.find((text) => !text.startsWith("mini-gpt2")) ?? names[0];
    select.addEventListener("change", () => { show(); reach(); });
    label.append(select);
    table.before(label);
    show();
  }
  // On a phone such a table is a list, and one with the class on paper, too: each cell has the title of its column (book.css).
  function name(table) {
    const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const { cells } of table.tBodies[0].rows)  // a cell of many rows stands in the first of them
      [...cells].forEach((cell, i) => { cell.dataset.title = titles.at(i - cells.length); });
    table.classList.add("stacks");
  }
  // The search of Sphinx fails where it has no text to show, as beside an entry of the index. It searches once the page is
  // parsed, so it is mended here where its script came first, and else before its own listener is called.
  function mend() {
    const summary = Search.makeSearchSummary;
    Search.makeSearchSummary = (...of) => summary(...of) ?? document.createElement("p");
  }
  // A page that was opened as a file may not read others, so its results have no excerpts.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  if (typeof Search !== "undefined") mend();
  else document.addEventListener("DOMContentLoaded", () => typeof Search !== "undefined" && mend());
  addEventListener("resize", reach);
  addEventListener("toggle", reach, true);  // of a folded part
  addEventListener("load", () => {
    document.querySelectorAll("table.one-model").forEach(choose);
    document.querySelectorAll(".bd-article :is(table.stacks, table.table:has(.verdict))").forEach(name);
    reach();
    // The theme's arrows beside chapters that have pages below them have no words.
    for (const arrow of document.querySelectorAll("summary"))
      if (!arrow.textContent.trim()) arrow.setAttribute("aria-label", "Pages below");
    // The theme leaves its own name for the book outside every landmark.
    const sidebar = document.querySelector(".bd-sidebar-primary");
    sidebar?.setAttribute("role", "complementary");
    sidebar?.setAttribute("aria-label", "Book");
    // The theme gives these buttons another name than the words that stand on them.
    for (const button of document.querySelectorAll("button[aria-label]:not(#playground-page *, #heads *)"))
      if (button.innerText.trim()) button.removeAttribute("aria-label");
  });
  // The theme leaves the list of contents open over the part of the page that was chosen.
  addEventListener("click", ({ target }) => {
    const dialog = target.closest("a[href^='#']")?.closest("dialog[open]");
    if (dialog) setTimeout(() => dialog.close());  // after the browser has gone there
  });
  // On a phone the list of all results of the paper folds each picture. A link to a result opens it.
  function foldPictures() {
    if (innerWidth > 600) return;
    for (const entry of document.querySelectorAll(".claim.paper[id^='row-']:has(table.strip)")) {
      const fold = document.createElement("details"), summary = document.createElement("summary");
      summary.textContent = "each model";
      const table = entry.querySelector("table.strip"), parts = [table, ...entry.querySelectorAll(".strip-key, details")];
      table.before(fold);
      fold.append(summary, ...parts);
    }
    const opens = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector(":scope > details")?.setAttribute("open", "");
    addEventListener("hashchange", opens);
    opens();
  }
  document.addEventListener("DOMContentLoaded", foldPictures);
  // One button a page opens and folds its source; without this script every cell has its own.
  function toggle() {
    const folds = [...document.querySelectorAll(".bd-article details.hide.above-input")], title = document.querySelector(".bd-article h1");
    if (!folds.length || !title) return;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "source-toggle", textContent: "Show the source" });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(open));
      for (const fold of folds) fold.open = open;
      reach();
    });
    title.after(button);
    document.body.classList.add("one-source-toggle");
  }
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", toggle) : toggle();
  // Folded parts print whole, and are folded again.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".bd-article details:not([open], .hide.above-input)")];  // source stays folded
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));
  // A tap shows what the pointer shows, the title of a term or a verdict; the next tap follows its link.
  let pointer = "", tip = null, tapped = null;
  const titleOf = (part) => part.getAttribute("title") || part.querySelector(":scope > title")?.textContent;
  addEventListener("pointerdown", (event) => { pointer = event.pointerType; }, true);
  addEventListener("click", (event) => {
    const part = event.target.closest(".bd-article :is([title]:not(button, .headerlink), svg.track)"), again = tip && tapped === part;
    tip?.remove();
    tip = null;
    if (pointer !== "touch" || !part || again || !titleOf(part)) return;
    const leads = part.closest("a[href]");
    if (leads) event.preventDefault();
    tip = Object.assign(document.createElement("div"), { className: "tip", textContent: titleOf(part) });
    tapped = part;
    tip.setAttribute("role", "status");
    if (leads) tip.append(Object.assign(document.createElement("small"), { textContent: "Tap again to open the link." }));
    document.body.append(tip);
    const at = part.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const above = at.bottom + 6 + size.height > innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    tip.style.top = `${above ? Math.max(8, at.top - size.height - 6) : at.bottom + 6}px`;
  }, true);
  addEventListener("scroll", () => { tip?.remove(); tip = null; }, { passive: true });
})();
