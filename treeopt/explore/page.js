// What marimo's page lacks: names of its sliders, and a word when the server has ended.
(() => {
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

  // The server is asked for its page whenever its connection closes, until it answers again.
  const PAUSE_MS = 2000;
  let leaving = false;
  let asking = false;
  addEventListener("pagehide", () => (leaving = true));
  const show = (text) => {
    let box = document.getElementById("server-stopped");
    if (box === null) {
      box = document.createElement("p");
      box.id = "server-stopped";
      box.setAttribute("role", "alert");
      document.body.prepend(box);
    }
    box.textContent = text;
  };
  const answers = () => fetch(location.href, { method: "HEAD", cache: "no-store" }).then(() => true, () => false);
  const ask = async () => {
    if (leaving || asking) return;
    asking = true;
    let stopped = false;
    while (!leaving && !(await answers())) {
      stopped = true;
      show("The server has stopped. What stands here stays, but controls have no effect: start treeopt explore again.");
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
    if (stopped) show("A server answers here again: reload the page.");
    asking = false;
  };
  const Socket = window.WebSocket;
  window.WebSocket = class extends Socket {
    constructor(...words) {
      super(...words);
      this.addEventListener("close", ask);
    }
  };
})();
