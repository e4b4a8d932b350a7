// The link to the server: its messages as they come, and the word when none come any more.

import { at, clock, show } from "./words.js";

const AGAIN_MS = 10000; // after a refusal (too many pages), which a browser does not try again by itself
const LOOK_MS = 5000;
const SILENT_MS = 40000; // the server says something every 15 s (stream.py); a machine that vanished says no goodbye

// `take`: called with each message. `isOver`: whether nothing more is to be expected. `changed`: when the link is lost
// or found. `begin`: before the first message of a connection, which tells everything anew.
export function listen({ take, isOver, changed, begin }) {
  let heard = Date.now();
  let lostAt = null;

  function found() {
    heard = Date.now();
    if (lostAt === null && document.documentElement.classList.contains("live")) return;
    lostAt = null;
    document.documentElement.className = "live";
    linked("good", "live");
    changed(false);
  }

  function lost(since) {
    if (lostAt !== null) return;
    lostAt = since;
    document.documentElement.className = "lost";
    linked("warn", isOver() ? `no connection since ${clock(since)}; the run is over` : `no connection since ${clock(since)}; trying again`);
    changed(true);
  }

  function linked(kind, words) {
    show("link", words);
    at("link").parentElement.className = `link ${kind}`;
  }

  function connect() {
    const source = new EventSource("/events");
    source.onopen = () => { begin(); found(); };
    source.onmessage = (event) => { found(); take(JSON.parse(event.data)); };
    source.onerror = () => {
      lost(Date.now());
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
    };
  }

  if (location.search) history.replaceState(null, "", location.pathname); // the token has done its work
  setInterval(() => { if (Date.now() - heard > SILENT_MS) lost(heard); }, LOOK_MS);
  connect();
}
