"use strict";
// The same formulas as treeopt/report/slider_model.py.
(() => {
  const data = JSON.parse(document.getElementById("slider-data").textContent);
  const batches = Object.keys(data.plain_s).map(Number).sort((a, b) => a - b);
  const place = (id) => document.getElementById(id);

  const chainTokens = (rates, scale) => {
    let total = 1;
    let reached = 1;
    for (const rate of rates) {
      reached *= Math.min(1, scale * rate);
      total += reached;
    }
    return total;
  };
  const times = (estimate, factor, error) => {
    const value = estimate.value * factor;
    const half = Math.hypot(((estimate.high - estimate.low) / 2) * factor, value * error);
    return { value, low: value - half, high: value + half };
  };
  const recompute = (tree, batch, setting) => {
    const plain = data.plain_s[batch];
    const tau = times(tree.tau, chainTokens(tree.rates, setting.acceptance) / chainTokens(tree.rates, 1), 0);
    const step = plain + setting.cost * (tree.step_s[batch] - plain);
    const speedup = times(tau, plain / step, tree.error[batch]);
    const tokens = (batch * tau.value) / step;
    const million = (setting.price / (tokens * 3600)) * 1e6;
    return { tau, step_s: step, speedup, tokens_s: tokens, tpot_s: step / tau.value, million };
  };

  const text = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const ranged = (e, digits) => `${text(e.value, digits)} [${text(e.low, digits)}, ${text(e.high, digits)}]`;
  const money = (value) => (value >= 1000 ? text(value, 0) : Number(value.toPrecision(3)).toString());

  const shape = () => document.querySelector("#sliders-form input[name=shape]:checked").value;
  const trees = () => data.trees.filter((tree) => tree.shape === shape());
  const priced = (batch) => data.trees.filter((tree) => batch in tree.step_s);
  const setting = () => ({
    acceptance: Number(place("s-acceptance").value),
    cost: Number(place("s-cost").value),
    price: Number(place("s-price").value),
  });
  const fastest = (batch, at) => {
    let best = null;
    for (const tree of priced(batch)) {
      const speedup = recompute(tree, batch, at).speedup;
      if (best === null || speedup.value > best.speedup.value) best = { tree, speedup };
    }
    return best !== null && best.speedup.value > 1 ? best : null;
  };

  const write = (id, value) => {
    place(id).textContent = value;
  };
  const update = () => {
    const at = setting();
    const batch = batches[Number(place("s-batch").value)];
    const choices = trees();
    place("s-size").max = choices.length - 1;
    const tree = choices[Math.min(Number(place("s-size").value), choices.length - 1)];
    write("size-name", shape() === "chain" ? "Draft length" : "Nodes of the tree");
    write("o-batch", batch);
    write("o-size", tree.nodes);
    write("o-acceptance", `× ${at.acceptance.toFixed(2)}`);
    write("o-cost", `× ${at.cost.toFixed(2)}`);
    write("o-price", at.price.toFixed(2));
    place("s-batch").setAttribute("aria-valuetext", `batch ${batch}`);
    place("s-size").setAttribute("aria-valuetext", tree.name);
    const known = batch in tree.step_s;
    const found = known ? recompute(tree, batch, at) : null;
    write("r-speedup", known ? ranged(found.speedup, 2) : "not in the profile");
    write("r-tau", known ? ranged(found.tau, 2) : "");
    write("r-step", known ? `${text(found.step_s * 1e3, 2)} ms` : "");
    write("r-tokens", known ? text(found.tokens_s, 0) : "");
    write("r-tpot", known ? `${text(found.tpot_s * 1e3, 2)} ms` : "");
    write("r-million", known ? money(found.million) : "");
    const best = fastest(batch, at);
    write(
      "r-best",
      best === null
        ? `Batch ${batch} at these settings: do not speculate.`
        : `Batch ${batch} at these settings: ${best.tree.name} is the fastest of those here, ${ranged(best.speedup, 2)} times plain decoding.`,
    );
    place("r-batches").replaceChildren(
      ...batches.map((size) => {
        const row = document.createElement("tr");
        if (size === batch) row.className = "chosen";
        const own = size in tree.step_s ? recompute(tree, size, at) : null;
        const top = fastest(size, at);
        const cells = [
          [String(size), "right"],
          [own === null ? "" : ranged(own.speedup, 2), "right"],
          [own === null ? "" : text(own.tokens_s, 0), "right"],
          [top === null ? "no speculation" : top.tree.name, "left"],
          [top === null ? "1" : ranged(top.speedup, 2), "right"],
        ];
        for (const [content, side] of cells) {
          const cell = document.createElement("td");
          cell.className = side;
          cell.textContent = content;
          row.append(cell);
        }
        return row;
      }),
    );
  };

  const start = () => {
    const best = fastest(batches[0], setting());
    if (best !== null) {
      document.querySelector(`#sliders-form input[name=shape][value=${best.tree.shape}]`).checked = true;
      place("s-size").max = trees().length - 1;
      place("s-size").value = trees().findIndex((tree) => tree.nodes === best.tree.nodes);
    }
    update();
  };

  place("s-batch").max = batches.length - 1;
  const form = place("sliders-form");
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  place("sliders-reset").addEventListener("click", () => {
    form.reset();
    start();
  });
  place("sliders-body").hidden = false;
  start();
  window.treeoptSliders = { data, recompute };
})();
