// Numbers in words, and small things that both pages do to the document. What comes from peers is text and stays text.

export const NOTHING = "-";
export const at = (id) => document.getElementById(id);
export const show = (id, text) => { if (at(id).textContent !== text) at(id).textContent = text; };
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const fixed = (value, digits) => (isNumber(value) ? value.toFixed(digits) : NOTHING);
export const percent = (value) => (isNumber(value) ? `${Math.round(100 * value)}%` : NOTHING);
export const short = (peer) => (peer.length > 12 ? `..${peer.slice(-8)}` : peer);

// As few digits as tell it from its neighbours: 0.1234, 12.35, 0.0003.
export function plain(value) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(size < 1 ? 4 : 5)));
}

export function amount(value) {
  if (!isNumber(value)) return NOTHING;
  let unit = 0;
  for (; Math.abs(value) >= 999.5 && unit < 3; unit += 1) value /= 1000;
  return `${Number(value.toPrecision(3))}${["", "k", "M", "G"][unit]}`;
}

export function size(bytes) {
  if (!isNumber(bytes)) return NOTHING;
  let unit = 0;
  for (; Math.abs(bytes) >= 999.5 && unit < 4; unit += 1) bytes /= 1000;
  return `${Number(bytes.toFixed(unit && bytes < 99.95 ? 1 : 0))} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

// As the terminal says it (node/system/text.py); empty where nothing is known.
export function bits(sent, published) {
  if (!sent) return "";
  const once = isNumber(published) ? `, ${Number(published.toPrecision(3))} published` : "";
  return `${Number(sent.toPrecision(3))} bits per parameter and inner step${once}`;
}

export const speed = (bytes) => (isNumber(bytes) ? `${size(bytes)}/s` : NOTHING);

export function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// As the terminal says it (node/system/text.py). The return is what the member itself says.
export function pausedUntil(at) {
  if (!isNumber(at)) return "paused";
  const day = at - Date.now() / 1000 < 24 * 3600 ? {} : { weekday: "short" };
  return `paused until ${new Date(1000 * at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...day })}`;
}

export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// A line that somebody copies, with a button that does it.
export function copyLine(text, what) {
  const line = make("div", "copy");
  const code = make("code", "", text);
  const button = make("button", "tool", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy ${what}`);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text, code)) ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  line.append(code, button);
  return line;
}

// Over plain HTTP from another machine a browser gives no clipboard: then the text is selected.
async function copied(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}
