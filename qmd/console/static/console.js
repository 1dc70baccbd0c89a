// Live regions: the page is fetched again, and its elements with data-live replace those of before.
// Without this script every page works all the same, and shows the figures of its loading.
"use strict";
(() => {
  const main = document.getElementById("main");
  const pause = document.getElementById("pause");
  const regions = () => [...document.querySelectorAll("[data-live]")];
  if (!main || !pause || !regions().length) return;
  const interval = Number(main.dataset.refresh) || 2000;
  const LATEST = 30000;
  let wait = interval;
  let paused = sessionStorage.getItem("paused") === "1";

  const label = () => {
    pause.textContent = paused ? "Live" : "Pause";
    pause.title = paused ? "Show live figures again" : "Stop the live figures";
  };

  const busy = (region) =>
    // A form in use, a text that is being marked, or a focused link stays as it is.
    region.contains(document.activeElement) ||
    [...region.querySelectorAll("input:not([type=hidden])")].some((each) => each.value !== each.defaultValue) ||
    (getSelection().rangeCount && !getSelection().isCollapsed && region.contains(getSelection().anchorNode));

  const refresh = async () => {
    const answer = await fetch(location.href, { headers: { "x-live": "1" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const region of regions()) {
      const found = next.getElementById(region.id);
      if (found && !busy(region) && found.innerHTML !== region.innerHTML) {
        region.replaceChildren(...[...found.childNodes].map((each) => document.adoptNode(each)));
      }
    }
    main.dataset.refreshed = String(Number(main.dataset.refreshed || 0) + 1);
  };

  const tick = async () => {
    if (!paused && !document.hidden) {
      try { await refresh(); wait = interval; } catch { wait = Math.min(2 * wait, LATEST); }
    }
    setTimeout(tick, wait);
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "1" : "0");
    label();
  });
  label();
  setTimeout(tick, wait);
})();
