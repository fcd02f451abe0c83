// The page: sections in their order, theme, print.

// Draws a picture for the width that its place has, and again when that changes.
const PICTURES = [];
function drawn(canvas, make) {
  const picture = { width: 0, draw: () => canvas.replaceChildren(make(picture.width)) };
  PICTURES.push(picture);
  new ResizeObserver(() => {
    const width = Math.round(canvas.clientWidth);
    if (!width || width === picture.width || printing) return;
    picture.width = width;
    picture.draw();
  }).observe(canvas);
}

const GROUPS = { layersweep: 'layersweep deletes it', 'can-be-made-again': 'can be made again', 'stopped-container': 'stopped container', 'only-you-can-judge': 'only you can judge', kept: 'kept' };
const commandOf = row => row.command ? row.command.deletes || row.command.shows : '';

function verdict() {
  const place = REPORT.host ? safe(REPORT.host) : REPORT.sysroot ? safe(REPORT.sysroot) : 'this node';
  const node = el('section', { id: 'verdict', 'aria-labelledby': 'title', tabindex: '-1' }, el('h1', { id: 'title', text: 'Disk usage of ' + place }));
  const facts = [when(REPORT.generated_at) + ' UTC, as all times here', many(SCAN.totals.images, 'image'), many(SCAN.totals.layers, 'layer'), many(SCAN.totals.containers, 'container'),
    bytes(SCAN.totals.bytes) + ' in ' + many(SCAN.stores.length, 'store')];
  if (REPORT.sysroot) facts.push('read from the disk mounted at ' + safe(REPORT.sysroot));
  node.append(el('p', { class: 'facts', text: facts.join(' · ') }));
  if (REPORT.complete === false || !SCAN.complete) node.append(el('p', { class: 'bad' }, 'Something could not be read: figures are lower bounds. ', el('a', { href: '#measured', text: 'What was skipped' })));
  node.append(advice(REPORT.verdict));
  const causes = REPORT.verdict.causes || [];
  if (causes.length) {
    node.append(new Table({ id: 'causes', caption: 'What to delete, the least risk first, and what else holds it', rows: causes, one: 'finding', size: 10, columns: [
      { label: 'Finding', get: row => row.kind, cell: row => words(row.kind), kind: 'nowrap' },
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Frees', get: row => row.frees_bytes || 0, bytes: true },
      { label: 'Then used', get: row => row.used_after_percent || 0, cell: row => row.used_after_percent === null || row.used_after_percent === undefined ? '–' : percent(row.used_after_percent), kind: 'num' },
      { label: 'What', get: row => row.text, cell: row => [safe(row.text), commandOf(row) ? el('span', { class: 'remedy' }, row.command.shows ? 'look: ' : '', el('code', { class: 'command', text: safe(commandOf(row)) }), copyButton(commandOf(row), 'the command ' + commandOf(row))) : null,
        remedyOf(row) ? el('span', { class: 'remedy' }, prose(remedyOf(row))) : null], kind: 'wide' },
      { label: 'Risk', get: row => Object.keys(GROUPS).indexOf(row.group), cell: row => GROUPS[row.group] || words(row.group || '–'), kind: 'nowrap' },
      { label: 'Where', get: row => row.path || row.id || '', cell: row => row.path ? el('span', { class: 'path', text: safe(row.path) }) : row.id ? idCell(row.id) : '', kind: 'wide' }] }).element);
  }
  return node;
}

function remedyOf(row) {
  return [row.reaches_low ? 'this alone reaches the low threshold' : '', row.remedy || ''].filter(Boolean).join('; ');
}

// Changes since earlier scans, in words.
function happened() {
  const changes = REPORT.changes || [];
  const several = (REPORT.filesystems || []).length > 1;
  const signed = change => (change < 0 ? '-' : '+') + bytes(Math.abs(change));
  return changes.map(change => {
    const named = [{ name: 'outside the stores', change_bytes: change.outside_change_bytes }, ...(change.objects || [])]
      .filter(object => Math.abs(object.change_bytes) >= 1048576).sort((a, b) => Math.abs(b.change_bytes) - Math.abs(a.change_bytes));
    return el('p', { text: 'Since ' + when(change.since) + ' UTC' + (several ? ' on ' + safe(change.filesystem) : '') + ': ' + signed(change.used_change_bytes) + ' used'
      + (named.length ? ': ' + named.map(object => signed(object.change_bytes) + ' ' + safe(object.name)).join(', ') : '') + ' (scan ' + safe(change.scan) + ')' });
  });
}

// In five seconds: how full, what holds it, what grew, what to do first, what is safe to do.
const URGENCY = { critical: 'Critical', warning: 'Warning', calm: 'OK', unknown: 'Unknown' };
function advice({ urgency, headline, steps = [], sentences = [] }) {
  const [full, filled, done] = sentences;
  if (!headline) return el('div', { class: 'verdict' }, sentences.map(text => el('p', null, prose(text))));
  const word = URGENCY[urgency] || URGENCY.unknown;
  const command = step => [el('code', { class: 'command', text: safe(commandOf(step)) }), copyButton(commandOf(step), 'the command ' + commandOf(step))];
  const says = step => el('p', null, commandOf(step) ? [command(step), ' '] : null, prose(capital(step.text)), commandOf(step) || !step.bytes ? '' : ' (' + bytes(step.bytes) + ')');
  const safely = steps.filter(step => !step.needs_decision);
  const [first, ...then] = steps;
  const late = urgency === 'critical' || urgency === 'warning';
  const none = late ? 'Nothing: what is left needs a decision.' : 'Nothing has to be done.';
  return el('div', { class: 'verdict urgency-' + (urgency in URGENCY ? urgency : 'unknown') },
    el('p', { class: 'headline' }, el('strong', { class: 'badge', text: word }), ' ', prose(headline)),
    el('dl', { class: 'answers' },
      el('dt', { text: 'What holds it' }), el('dd', null, prose(filled || '')),
      el('dt', { text: 'What happened' }), el('dd', null, happened().length ? happened() : 'No earlier scan is kept: what grew is unknown.'),
      first ? [el('dt', { text: (late ? 'Do first' : 'Can be done') + (REPORT.sysroot ? ', once the node runs' : '') }), el('dd', { class: 'first' }, says(first))] : null,
      then.length ? [el('dt', { text: 'Then' }), el('dd', null, then.map(says))] : null,
      el('dt', { text: REPORT.sysroot ? 'Safe, once the node runs' : 'Safe now' }), el('dd', null, safely.length
        ? [safely.map((step, at) => [at ? ' and ' : '', el('code', { text: safe(commandOf(step)) })]), safely.length > 1 ? ' delete' : ' deletes',
          ' only what nothing uses and no rule protects. Add ', el('code', { text: '--dry-run' }), ' to see it first.'] : none),
      // Why there is nothing to do, or not enough.
      safely.length ? null : [el('dt', { text: 'Why' }), el('dd', null, prose(done || ''))],
      el('dt', { text: 'In numbers' }), el('dd', null, prose(full || ''))));
}

function measured() {
  const node = section('measured', 'How it was measured');
  const list = (title, items) => {
    if (items && items.length) node.append(el('h3', { text: title }), el('ul', { class: 'plain' }, items.map(item => el('li', { text: sentence(item) }))));
  };
  const said = REPORT.measured || {};
  list('How', said.how);
  list('What was skipped', said.skipped);
  list('Warnings', (said.warnings && said.warnings.length ? said.warnings : SCAN.warnings));
  if (!(said.skipped || []).length && REPORT.complete !== false && SCAN.complete) node.append(el('p', { text: 'Nothing was skipped.' }));
  node.append(el('p', { class: 'note', text: count(SCAN.scan.inodes) + ' inodes examined in ' + SCAN.scan.seconds.toFixed(1) + ' s; ' + many(SCAN.scan.measured_layers, 'layer')
    + ' measured, ' + count(SCAN.scan.cached_layers) + ' cached from an earlier scan. All bytes are allocated bytes, as du counts them, in IEC units (1 KiB = 1024 bytes).' }));
  return node;
}

function footer() {
  const foot = document.getElementById('footer');
  const save = el('button', { type: 'button', text: 'Save the data as JSON', on: { click: () => {
    const url = URL.createObjectURL(new Blob([document.getElementById('report').textContent.trim() + '\n'], { type: 'application/json' }));
    const link = el('a', { href: url, download: 'layersweep-report.json' });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  } } });
  foot.append(el('p', null, OTHERS.length ? 'The data of this page is in this file; all of it is printed with ' : 'The whole document is in this file, as it is printed with ',
    el('code', { text: '--format json' }), ' instead of ', el('code', { text: '--html' }), '. ', save),
    el('p', null, 'On a terminal: ', el('code', { text: "sed -n '/id=\"report\">$/{n;p;q}' report.html | jq ." })),
    el('p', { class: 'note', text: 'The page loads nothing and sends nothing. The layouts are computed by d3-hierarchy (ISC licence, Mike Bostock).' }));
}

function theme() {
  const button = document.getElementById('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  const now = () => chosen || (dark.matches ? 'dark' : 'light');
  const apply = () => {
    document.documentElement.dataset.theme = printing ? 'light' : now();
    button.textContent = now() === 'dark' ? 'Light theme' : 'Dark theme';
  };
  button.hidden = false;
  button.addEventListener('click', () => { chosen = now() === 'dark' ? 'light' : 'dark'; apply(); });
  dark.addEventListener('change', apply);
  apply();
  return apply;
}

// Printing unfolds everything and uses the light theme; both are restored afterwards.
function print(apply) {
  let folded = [];
  addEventListener('beforeprint', () => {
    printing = true;
    folded = [...document.querySelectorAll('details:not([open]):not(.no-print)')];
    for (const one of folded) one.open = true;
    apply();
    for (const table of Table.all) table.show();
  });
  addEventListener('afterprint', () => {
    printing = false;
    for (const one of folded) one.open = false;
    apply();
    for (const table of Table.all) table.show();
  });
}

function build() {
  const apply = theme();
  const model = buildModel();
  const main = document.getElementById('main');
  document.body.append(hatches(), el('div', { id: 'announcer', class: 'visually-hidden', role: 'status', 'aria-live': 'polite' }));
  const layers = section('layers', 'Layers', 'Each layer once, below the layer it is built on. A layer is as wide as its own bytes and those of all layers above it; the strongest colour marks layers of a single image.');
  if (rest('layers').count) layers.append(el('p', { class: 'note', text: omittedNote(SCAN.layers.length, rest('layers'), 'layer') }));
  layers.append(icicle(model));
  const images = section('images', 'Images', 'The area is the exclusive bytes of each image, by registry, repository and tag.');
  if (rest('images').count) images.append(el('p', { class: 'note', text: omittedNote(SCAN.images.length, rest('images'), 'image') }));
  images.append(treemap(model));
  main.append(verdict(), filesystems(), layers, images, usage(), tables(model), measured());
  const titles = { verdict: 'Summary', filesystems: 'Filesystems', layers: 'Layers', images: 'Images', usage: 'Usage', tables: 'Tables', measured: 'Measured' };
  document.getElementById('contents').append(el('ol', null, Object.entries(titles).map(([id, title]) => el('li', null, el('a', { href: '#' + id, text: title })))));
  footer();
  print(apply);
  // Signals to a test or printer that the page is drawn.
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.drawn = Math.round(performance.now()); }));
}
build();
