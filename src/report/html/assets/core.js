// Small tools: elements, texts, numbers. Foreign strings reach the page only through
// textContent and setAttribute, never as markup.

const NS = 'http://www.w3.org/2000/svg';

function fillIn(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name === 'on') for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
function el(tag, attrs, ...children) { return fillIn(document.createElement(tag), attrs, children); }
function svg(tag, attrs, ...children) { return fillIn(document.createElementNS(NS, tag), attrs, children); }

// As the program prints foreign strings: what acts on a terminal, or turns the line around, is escaped.
const ACTS = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]/g;
function safe(text) {
  return String(text).replace(ACTS, c => '\\u{' + c.charCodeAt(0).toString(16) + '}');
}

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
// As the program prints bytes: IEC units, one decimal, exact below 1024.
function bytes(number) {
  if (number === null || number === undefined) return '–';
  const sign = number < 0 ? '-' : '';
  let value = Math.abs(number);
  if (value < 1024) return sign + value + ' B';
  let unit = 0;
  value /= 1024;
  while (value >= 1023.95 && unit + 1 < UNITS.length) { value /= 1024; unit += 1; }
  return sign + value.toFixed(1) + ' ' + UNITS[unit];
}
function count(number) {
  if (number === null || number === undefined) return '–';
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}
function many(number, one, more) { return count(number) + ' ' + (number === 1 ? one : more || one + 's'); }
function exact(number) { return bytes(number) + (Math.abs(number) < 1024 ? '' : ' (' + count(number) + ' bytes)'); }
function percent(number) { return number === null || number === undefined ? 'unknown' : (+number.toFixed(1)) + '%'; }
function share(part, whole) {
  if (!whole) return '–';
  const of = part / whole * 100;
  return of > 0 && of < 0.1 ? '< 0.1%' : of.toFixed(1) + '%';
}
function when(text) {
  if (!text) return '–';
  const time = new Date(text);
  if (isNaN(time)) return safe(text);
  return time.toISOString().slice(0, 16).replace('T', ' ');
}
function age(seconds) {
  if (seconds === null || seconds === undefined) return 'unknown';
  if (seconds < 120) return seconds + 's';
  if (seconds < 7200) return Math.floor(seconds / 60) + 'm';
  if (seconds < 172800) return Math.floor(seconds / 3600) + 'h';
  return Math.floor(seconds / 86400) + 'd';
}
// The first twelve digits, as the runtimes' tools print them; a namespace in front of them stays.
function shortId(id) {
  const at = id.lastIndexOf('/');
  const bare = id.slice(at + 1).replace(/^sha256:/, '');
  return safe(id.slice(0, at + 1)) + safe(Array.from(bare).slice(0, 12).join(''));
}
// The last part of a reference: what fits into a picture.
function shortName(name) {
  return safe(name.replace(/@sha256:([0-9a-f]{8})[0-9a-f]*$/, '@$1').replace(/^.*\//, ''));
}
function words(text) { return safe(String(text)).replace(/[_-]/g, ' '); }
function capital(text) { return text.charAt(0).toUpperCase() + text.slice(1); }
// A text, or an object of a path and a message.
function sentence(item) {
  if (item === null || typeof item !== 'object') return safe(item);
  const said = item.message || item.reason || item.text || '';
  const where = item.path || item.id || '';
  return safe(where && said ? where + ': ' + said : where || said || JSON.stringify(item));
}

// Running text in which commands stand in backquotes.
function prose(text) {
  const parts = safe(text).split('`');
  return parts.length % 2 ? parts.map((part, at) => at % 2 ? el('code', { text: part }) : part) : [safe(text)];
}

const ruler = document.createElement('canvas').getContext('2d');
ruler.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
function textWidth(text) { return ruler.measureText(text).width; }
// As much of a text as fits, or nothing where that would say nothing.
function fit(text, width) {
  if (width < 18) return '';
  if (textWidth(text) <= width) return text;
  const letters = Array.from(text);
  let low = 0, high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(letters.slice(0, middle).join('') + '…') <= width) low = middle; else high = middle - 1;
  }
  return low < 5 ? '' : letters.slice(0, low).join('') + '…';
}

// What is hatched: a plain ground with lines on it.
function hatch(id, kind, angle) {
  return svg('pattern', { id, width: 7, height: 7, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(' + angle + ')' },
    svg('rect', { width: 7, height: 7, class: 'fill-' + kind }),
    svg('line', { x1: 0, y1: 0, x2: 0, y2: 7, class: 'ink-' + kind, 'stroke-width': 2.4 }));
}
const HATCHED = { leak: 45, reserved: -45, more: 90 };
function paint(rect, kind) {
  if (kind in HATCHED) rect.setAttribute('fill', 'url(#hatch-' + kind + ')');
  else rect.setAttribute('class', 'fill-' + kind);
  return rect;
}
function hatches() {
  return svg('svg', { width: 0, height: 0, class: 'visually-hidden', 'aria-hidden': 'true' },
    svg('defs', null, Object.entries(HATCHED).map(([kind, angle]) => hatch('hatch-' + kind, kind, angle))));
}
function swatch(kind) {
  return svg('svg', { class: 'swatch', viewBox: '0 0 16 12', 'aria-hidden': 'true' },
    paint(svg('rect', { x: 0.5, y: 0.5, width: 15, height: 11 }), kind));
}
function legend(entries) {
  return el('ul', { class: 'legend' }, entries.map(([kind, text]) => el('li', null, swatch(kind), text)));
}

function copyButton(text, what) {
  const button = el('button', { type: 'button', class: 'copy', text: 'copy', 'aria-label': 'Copy ' + what });
  button.addEventListener('click', async event => {
    event.stopPropagation();
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch { done = copyByHand(text, button); }
    button.textContent = done ? 'copied' : 'failed';
    announce(done ? 'Copied.' : 'This browser does not let the page copy.');
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  });
  return button;
}
// Where a page from a file may not use the clipboard.
function copyByHand(text, button) {
  const area = el('textarea', { class: 'visually-hidden', 'aria-hidden': 'true' });
  area.value = text;
  document.body.append(area);
  area.select();
  let done = false;
  try { done = document.execCommand('copy'); } catch { done = false; }
  area.remove();
  button.focus();
  return done;
}
function announce(text) {
  const place = document.getElementById('announcer');
  if (place) place.textContent = text;
}
function idCell(id) {
  return el('span', { class: 'id', title: safe(id) }, shortId(id), copyButton(id, 'id ' + shortId(id)));
}

// A table that is wider than its place scrolls, and says so.
function scroller(label, table) {
  const region = el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label }, table);
  const cue = el('p', { class: 'cue no-print', 'aria-hidden': 'true', text: 'Scroll sideways for more columns →', hidden: true });
  const look = () => { cue.hidden = region.scrollLeft + region.clientWidth >= region.scrollWidth - 1; };
  region.addEventListener('scroll', look, { passive: true });
  const watch = new ResizeObserver(look);
  watch.observe(region);
  watch.observe(table);
  return el('div', { class: 'scroller' }, cue, region);
}

function section(id, title, lead) {
  const node = el('section', { id, 'aria-labelledby': id + '-title' }, el('h2', { id: id + '-title', text: title }));
  if (lead) node.append(el('p', { class: 'lead', text: lead }));
  return node;
}
function empty(text) { return el('p', { class: 'empty', text }); }
