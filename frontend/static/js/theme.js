// Classic script in <head>, so that the page is never painted in the wrong colours first.
"use strict";
(() => {
  const KEY = "tidegate.theme";
  const CHOICES = ["auto", "light", "dark"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let choice = "auto";
  try { choice = localStorage.getItem(KEY) || "auto"; } catch { /* storage may be denied: auto then */ }
  if (!CHOICES.includes(choice)) choice = "auto";

  function apply() {
    const scheme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    document.documentElement.dataset.theme = choice;
    document.documentElement.dataset.scheme = scheme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${choice}`;
    document.dispatchEvent(new CustomEvent("tidegate:theme", { detail: scheme }));
  }
  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme")?.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try { localStorage.setItem(KEY, choice); } catch { /* not kept, still applied */ }
      apply();
    });
  });
})();
