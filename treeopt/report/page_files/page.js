"use strict";
(() => {
  const root = document.documentElement;

  // --- theme: automatic, light, dark
  const themes = ["automatic", "light", "dark"];
  const toggle = document.getElementById("theme");
  const show = (theme) => {
    if (theme === "automatic") delete root.dataset.theme;
    else root.dataset.theme = theme;
    toggle.textContent = `Theme: ${theme}`;
  };
  if (toggle) {
    let place = 0;
    toggle.hidden = false;
    toggle.addEventListener("click", () => show(themes[(place = (place + 1) % themes.length)]));
  }

  // --- tables: a click on a heading sorts by its column, another one the other way round
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell === undefined ? undefined : cell.dataset.value;
  };
  const compare = (a, b, sign) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const [x, y] = [Number(a), Number(b)];
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    return sign * a.localeCompare(b, "en", { numeric: true });
  };
  const sort = (table, heading, column) => {
    const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const groups = [];
    for (const row of body.rows) {
      if (row.classList.contains("note") && groups.length) groups[groups.length - 1].push(row);
      else groups.push([row]);
    }
    groups.sort((a, b) => compare(valueOf(a[0], column), valueOf(b[0], column), sign));
    for (const group of groups) body.append(...group);
  };
  for (const table of document.querySelectorAll("table:not(.unsorted)")) {
    if (!table.tHead || table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, heading, column));
    });
  }

  // --- charts: live ones take the place of the pictures when they come near; the first unpacks Vega
  const specs = document.getElementById("specs");
  const packed = document.getElementById("vega");
  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };
  if (specs && packed && window.DecompressionStream) {
    const known = JSON.parse(specs.textContent);
    let vega = null;
    const live = async (box) => {
      const still = box.parentElement.querySelector(".still");
      try {
        await (vega ??= unpacked());
        box.hidden = false;
        await window.vegaEmbed(box, known[box.id], { actions: false, renderer: "svg", mode: "vega-lite" });
        still.style.display = "none";
        box.dataset.ready = "yes";
      } catch (error) {
        box.hidden = true;
        console.error(error);
      }
    };
    const near = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          near.unobserve(entry.target);
          live(entry.target.querySelector(".live"));
        }
      },
      { rootMargin: "400px" },
    );
    for (const plot of document.querySelectorAll(".plot")) if (plot.querySelector(".live")) near.observe(plot);
  }
})();
