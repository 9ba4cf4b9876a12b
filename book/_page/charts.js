// Charts are drawn from the data that stand in the page (book/_ext/assemble_pages.py). Their text and lines take the page's ink, so
// light and dark need no redrawing.
(() => {
  const ink = { labelColor: "currentColor", titleColor: "currentColor", subtitleColor: "currentColor" };
  const lines = { domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor", gridOpacity: 0.15 };
  const page = {
    background: "transparent",
    axis: { ...ink, ...lines },
    legend: { ...ink, symbolBaseFillColor: "currentColor", symbolBaseStrokeColor: "currentColor" },
    header: ink,
    title: { color: "currentColor", subtitleColor: "currentColor" },
    view: { stroke: "transparent" },
  };
  const marks = { text: { color: "currentColor" }, rule: { color: "currentColor" } };  // where the chart does not say

  function merge(below, above) {
    const both = { ...below };
    for (const [key, value] of Object.entries(above)) {
      const deep = value && typeof value === "object" && !Array.isArray(value);
      both[key] = deep ? merge(both[key] || {}, value) : value;
    }
    return both;
  }

  function wrapped(words, most) {
    const lines = [""];
    for (const word of words.split(" ")) {
      if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    return lines.length > 1 ? lines : words;
  }

  // On a phone: one panel below another, each as wide as there is room; one entry of a legend a line; titles broken.
  function narrow(part, width, panel) {
    if (Array.isArray(part)) return part.map((item) => narrow(item, width, panel));
    if (!part || typeof part !== "object") return part;
    const keep = ["datasets", "tooltip", "transform"];
    const made = Object.fromEntries(Object.entries(part).map(([key, item]) => [key, keep.includes(key) ? item : narrow(item, width, panel)]));
    if (made.legend) made.legend = { ...made.legend, columns: 1, labelLimit: width - 60 };
    const title = [made.title].flat();
    if (title.every((line) => typeof line === "string")) made.title = wrapped(title.join(" "), (width - 165) / 6.5);
    if (made.columns > 1 && (made.facet || made.repeat || made.concat)) made.columns = 1;
    const { row, column } = made.facet || {};
    if (row && column) {  // a grid becomes a list
      const both = `datum[${JSON.stringify(row.field)}] + ": " + datum[${JSON.stringify(column.field)}]`;
      made.transform = [...(made.transform || []), { calculate: both, as: "panel" }];
      const sort = row.sort?.flatMap?.((a) => column.sort?.map?.((b) => `${a}: ${b}`) ?? []);
      Object.assign(made, { facet: { field: "panel", type: "nominal", title: null, sort: sort?.length ? sort : null }, columns: 1 });
    }
    if (typeof made.width === "number" && "height" in made) made.width = panel;
    return made;
  }

  // Whether a button lies over a label of its chart.
  function covers(button, chart) {
    const box = button.getBoundingClientRect();
    return [...chart.querySelectorAll("svg.marks text")].map((text) => text.getBoundingClientRect())
      .some((text) => text.left < box.right && text.right > box.left && text.top < box.bottom && text.bottom > box.top);
  }

  const views = new Map();  // chart -> its view, let go before the chart is drawn again

  function draw(element, spec, panel) {
    const box = element.parentElement, room = box.clientWidth, phone = room < 500;
    const config = merge(merge(marks, spec.config || {}), page);
    if (phone) config.legend = { ...config.legend, columns: 1, labelLimit: room - 60 };
    const whole = { ...(phone ? narrow(spec, room, panel || room - 90) : spec), config, background: "transparent" };
    return vegaEmbed(element, whole, {
      mode: "vega-lite",
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: element.dataset.name,
      scaleFactor: 2,
    }).then(({ view }) => {
      views.get(element)?.finalize();
      views.set(element, view);
      view.addEventListener("click", (event, item) => pick(element, item?.datum));
      mark();
      const over = element.querySelector("svg.marks").getBoundingClientRect().width - room;
      if (phone && !panel && over > 0) return draw(element, spec, room - 90 - over);
      const button = element.querySelector("summary");
      button?.setAttribute("aria-label", "Save this chart");
      if (button && covers(button, element)) button.parentElement.style.marginTop = 0;
      // A group of marks that says nothing has no name, and need not be announced; its marks have names of their own.
      for (const group of element.querySelectorAll("g[role='graphics-symbol']:not([aria-label])")) group.removeAttribute("role");
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // it scrolls: the keyboard must reach it
    });
  }

  // ---- one head, marked in every chart of the page ----
  const HEAD = /^\d+-\d+$/;
  let head = null;  // its model and name, as charts write them

  function headOf(datum) {
    if (!datum?.model) return null;
    const { layer, head: number } = datum, names = [datum.selected_head, number, datum.row];
    const name = Number.isInteger(layer) && Number.isInteger(number) ? `${layer}-${number}` : names.find((text) => HEAD.test(text));
    return name ? { model: datum.model, name } : null;
  }

  function mark() {
    for (const item of document.querySelectorAll("div.chart svg.marks .mark-rect path, div.chart svg.marks .mark-symbol path")) {
      const of = head && headOf(item.__data__?.datum);  // Vega keeps what it drew beside what it drew it from
      item.classList.toggle("picked", Boolean(of) && of.model === head.model && of.name === head.name);
    }
  }

  // Below the chart: which head is marked, and the way to its prompts.
  function pick(chart, datum) {
    const of = headOf(datum);
    if (!of && !head) return;
    head = of;
    mark();
    document.querySelector(".picked-head")?.remove();
    if (!head) return;
    const address = new URL("heads.html", location.href);
    address.hash = new URLSearchParams({ model: head.model, head: head.name });
    const line = document.createElement("p"), link = document.createElement("a");
    Object.assign(link, { href: address.href, textContent: "Open it with its prompts" });
    line.className = "picked-head";
    line.setAttribute("role", "status");
    line.append(`Head ${head.name} of ${head.model} is marked in every chart of this page. `, link, ".");
    chart.after(line);
  }

  // A chart in a closed answer has no width to fill: it is drawn when the answer is opened.
  const hidden = (element) => !element.parentElement.clientWidth;
  addEventListener("toggle", ({ target }) => {
    if (target.open) last = last.then(() => drawAll(target.querySelectorAll("div.chart:not(:has(svg))")));
  }, true);

  // In tooltips the column of heads has the name that axes and texts have.
  const named = (_, part) => (part?.field === "selected_head" && !("title" in part) ? { ...part, title: "head" } : part);

  function drawAll(elements = document.querySelectorAll("div.chart")) {
    const all = [];
    for (const element of elements) {
      if (hidden(element)) continue;
      const drawn = async () => draw(element, JSON.parse(element.nextElementSibling.textContent, named));
      all.push(drawn().catch((error) => {  // no vega.js, or a page that may not evaluate: as without JavaScript
        const picture = element.nextElementSibling.nextElementSibling;
        element.innerHTML = picture ? picture.textContent : "";
        element.append(...(picture ? [] : [`This chart cannot be drawn: ${error.message}`]));
        console.error(error);
      }));
    }
    return Promise.all(all);
  }

  // A tap shows what the pointer shows of a mark.
  addEventListener("click", (event) => {
    if (event.pointerType !== "touch") return;
    document.getElementById("vg-tooltip-element")?.classList.remove("visible");
    const { target, clientX, clientY } = event;
    if (target.closest("svg.marks")) target.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX, clientY }));
  });

  // Charts that are drawn above the place of a link move it: the page goes there again, unless its reader went elsewhere.
  let moved = false;
  for (const sign of ["wheel", "touchmove", "keydown", "pointerdown"]) addEventListener(sign, () => { moved = true; }, { once: true, passive: true });
  let last = drawAll().then(() => {
    if (!moved && location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  });
  let width = window.innerWidth, soon;
  addEventListener("resize", () => {  // a tablet is turned, a window docked; a phone's bars that come and go change no width
    clearTimeout(soon);
    soon = setTimeout(() => {
      if (width !== window.innerWidth && !matchMedia("print").matches) last = last.then(() => drawAll());  // one drawing at a time
      width = window.innerWidth;
    }, 150);
  });
})();
