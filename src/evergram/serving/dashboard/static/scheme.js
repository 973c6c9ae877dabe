// The colour scheme: the system's, or the user's choice. Runs before anything is drawn.

(() => {
  const KEY = "evergram-scheme";
  const NAMES = ["system", "light", "dark"];
  const kept = () => {
    try {
      const name = localStorage.getItem(KEY);
      return NAMES.includes(name) ? name : "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  };
  const use = (name) => {
    document.documentElement.dataset.scheme = name;
  };
  use(kept());
  addEventListener("storage", ({ key }) => {
    if (key !== KEY) return;
    use(kept());
    document.getElementById("scheme").value = kept();
  });
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("scheme");
    choice.value = kept();
    choice.addEventListener("change", () => {
      use(choice.value);
      try {
        localStorage.setItem(KEY, choice.value);
      } catch {
        // Storage may be forbidden: the choice then lasts until the page is closed.
      }
    });
  });
})();
