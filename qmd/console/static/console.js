// Live regions: the server sends the elements with data-live that have changed, as events.  Where
// that is not possible, the page is fetched again.  Without this script every page works all the
// same, and shows the figures of its loading.
"use strict";
(() => {
  const main = document.getElementById("main");
  const pause = document.getElementById("pause");
  const regions = () => [...document.querySelectorAll("[data-live]")];
  if (!main || !pause || !regions().length) return;
  const interval = Number(main.dataset.refresh) || 2000;
  const LATEST = 30000;
  const latest = new Map(); // the newest elements that are not shown yet, by id
  let wait = interval;
  let paused = sessionStorage.getItem("paused") === "1";
  let source = null;
  let polls = false; // the server sends no events

  const label = () => {
    pause.textContent = paused ? "Live" : "Pause";
    pause.title = paused ? "Show live figures again" : "Stop the live figures";
  };

  const busy = (region) =>
    // A form in use, a text that is being marked, or a focused link stays as it is.
    region.contains(document.activeElement) ||
    [...region.querySelectorAll("input:not([type=hidden])")].some((each) => each.value !== each.defaultValue) ||
    (getSelection().rangeCount && !getSelection().isCollapsed && region.contains(getSelection().anchorNode));

  const show = () => {
    for (const region of regions()) {
      const found = latest.get(region.id);
      if (!found || busy(region)) continue;
      latest.delete(region.id);
      if (found.innerHTML !== region.innerHTML) {
        region.replaceChildren(...[...found.childNodes].map((each) => document.adoptNode(each)));
      }
    }
  };

  const take = (html) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const found of page.querySelectorAll("[data-live]")) latest.set(found.id, found);
    show();
    main.dataset.refreshed = String(Number(main.dataset.refreshed || 0) + 1);
  };

  const poll = async () => {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(location.href, { headers: { "x-live": "1" }, redirect: "manual" });
        if (answer.type === "opaqueredirect") { location.reload(); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        take(await answer.text());
        wait = interval;
      } catch { wait = Math.min(2 * wait, LATEST); }
    }
    setTimeout(poll, wait);
  };

  // A page that is not seen has no stream: browsers open few connections to one server.
  const listen = () => {
    const wanted = !paused && !document.hidden && !polls;
    if (wanted === (source !== null)) return;
    if (!wanted) { source.close(); source = null; return; }
    source = new EventSource(location.href);
    source.addEventListener("regions", (event) => take(Object.values(JSON.parse(event.data)).join("")));
    source.addEventListener("ended", () => location.reload());
    source.addEventListener("error", () => {
      // After a lost connection the browser connects again; after a refusal it does not.
      if (source && source.readyState === EventSource.CLOSED) { polls = true; listen(); poll(); }
    });
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "1" : "0");
    label();
    listen();
  });
  document.addEventListener("visibilitychange", listen);
  setInterval(show, 1000); // what was busy before
  label();
  listen();
})();
