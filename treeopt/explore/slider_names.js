// marimo's sliders have no accessible name: give each thumb the text of its label.
addEventListener("DOMContentLoaded", () => {
  const name = () => {
    for (const slider of document.querySelectorAll("marimo-slider")) {
      const label = slider.shadowRoot?.querySelector("label");
      for (const thumb of slider.shadowRoot?.querySelectorAll("[role=slider]") ?? []) {
        thumb.setAttribute("aria-label", label?.textContent.trim() ?? "");
      }
    }
  };
  new MutationObserver(() => setTimeout(name, 300)).observe(document.body, { childList: true, subtree: true });
});
