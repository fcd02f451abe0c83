// One bar for each filesystem: its parts and thresholds.

const PARTS = { images: 'images', 'images-pinned': 'pinned', 'images-unused': 'unused', containers: 'containers', leaks: 'leak',
  'build-cache': 'own',
  metadata: 'metadata', 'store-other': 'metadata', volumes: 'metadata', logs: 'logs', journal: 'journal', 'kubelet-volumes': 'kubelet', 'var-tmp': 'vartmp',
  'core-dumps': 'vartmp', 'deleted-open': 'vartmp', swap: 'own', layersweep: 'own', 'other-store': 'other', directory: 'other', other: 'rest' };
function partFill(kind) { return PARTS[kind] || 'other'; }

function filesystems() {
  const node = section('filesystems', 'Filesystems', 'Every used byte belongs to exactly one part. The dashed lines are the thresholds at which layersweep or the kubelet starts or stops deleting.');
  if (!REPORT.filesystems.length) { node.append(empty('No filesystem with a store was found.')); return node; }
  for (const filesystem of REPORT.filesystems) node.append(oneFilesystem(filesystem));
  return node;
}

function segmentsOf(filesystem) {
  const segments = filesystem.parts.map(part => ({ label: capital(safe(part.label || words(part.kind))), bytes: part.bytes, fill: partFill(part.kind), path: part.path, kind: part.kind }));
  const reserved = filesystem.reserved_bytes || 0;
  if (reserved > 0) segments.push({ label: 'Reserved for root', bytes: reserved, fill: 'reserved', path: null, kind: 'reserved' });
  segments.push({ label: 'Available', bytes: filesystem.available_bytes, fill: 'free', path: null, kind: 'available' });
  return segments;
}

function oneFilesystem(filesystem) {
  const segments = segmentsOf(filesystem);
  const figure = el('figure', { class: 'filesystem', 'data-mount': filesystem.mount });
  const canvas = el('div', { class: 'canvas' });
  const rows = [];
  segments.forEach((segment, at) => {
    const row = el('tr', null, el('td', { class: 'nowrap' }, swatch(segment.fill), ' ' + segment.label),
      el('td', { class: 'num', 'data-bytes': segment.bytes, text: bytes(segment.bytes) }),
      el('td', { class: 'num', text: share(segment.bytes, filesystem.capacity_bytes) }),
      el('td', { class: 'wide path', text: segment.path === null || segment.path === undefined ? '' : safe(segment.path) }));
    const light = on => () => canvas.querySelectorAll('.segment').forEach(group => group.classList.toggle('lit', on && +group.dataset.at === at));
    row.addEventListener('pointerenter', light(true));
    row.addEventListener('pointerleave', light(false));
    rows.push(row);
  });
  const of = 'Of ' + bytes(filesystem.capacity_bytes) + ', ' + bytes(filesystem.used_bytes) + ' used, ' + bytes(filesystem.available_bytes) + ' available'
    + (filesystem.used_percent === null || !filesystem.capacity_bytes ? '' : ': ' + ((1 - filesystem.available_bytes / filesystem.capacity_bytes) * 100).toFixed(1) + '% full as the kubelet counts');
  const taken = filesystem.inodes - filesystem.inodes_free;
  const inodes = filesystem.inodes > 0 ? ' Of ' + many(filesystem.inodes, 'inode') + ', ' + count(taken) + ' used: ' + (taken / filesystem.inodes * 100).toFixed(1) + '%.' : '';
  const forecast = filesystem.forecast ? ' Forecast: ' + safe(filesystem.forecast.text) + '.' : '';
  figure.append(
    el('h3', { text: safe(filesystem.mount) }),
    el('p', { class: 'facts', text: safe(filesystem.device) + ', ' + safe(filesystem.fstype) + '. ' + of + '.' + inodes + forecast }),
    canvas,
    scroller('Parts of ' + safe(filesystem.mount),
      el('table', { class: 'parts' }, el('thead', null, el('tr', null, el('th', { scope: 'col', text: 'Part' }),
        el('th', { scope: 'col', class: 'num', text: 'Bytes' }), el('th', { scope: 'col', class: 'num', text: 'Of capacity' }), el('th', { scope: 'col', text: 'Path' }))),
      el('tbody', null, rows))));
  if (filesystem.thresholds && filesystem.thresholds.length) {
    figure.append(el('details', null, el('summary', { text: many(filesystem.thresholds.length, 'threshold') }),
      el('table', null, el('thead', null, el('tr', null, el('th', { scope: 'col', text: 'Threshold' }), el('th', { scope: 'col', class: 'num', text: 'Percent' }), el('th', { scope: 'col', text: 'Source' }))),
        el('tbody', null, filesystem.thresholds.map(mark => el('tr', null, el('td', { text: safe(mark.name) }), el('td', { class: 'num', text: percent(mark.percent) + (mark.of === 'inodes' ? ' of inodes' : '') }), el('td', { text: safe(mark.source) })))))));
  }
  drawn(canvas, width => barPicture(filesystem, segments, width));
  return figure;
}

function barPicture(filesystem, segments, width) {
  const capacity = filesystem.capacity_bytes || segments.reduce((sum, segment) => sum + segment.bytes, 0) || 1;
  const labels = thresholdLabels((filesystem.thresholds || []).filter(mark => mark.of !== 'inodes'), width);
  const top = labels.lanes * 15 + 6, height = 40;
  const picture = svg('svg', { viewBox: '0 0 ' + width + ' ' + (top + height + 22), role: 'img',
    'aria-label': 'Bar of ' + safe(filesystem.mount) + ': ' + segments.map(segment => segment.label + ' ' + bytes(segment.bytes)).join(', ') + '. The table below has the same figures.' });
  let x = 0;
  segments.forEach((segment, at) => {
    const w = segment.bytes / capacity * width;
    const group = svg('g', { class: 'segment', 'data-at': at, 'data-kind': segment.kind, 'data-bytes': segment.bytes },
      paint(svg('rect', { x, y: top, width: w, height }), segment.fill), svg('title', { text: segment.label + ': ' + exact(segment.bytes) }));
    if (w >= 60) {
      const name = fit(segment.label, w - 10), size = bytes(segment.bytes);
      const at = clear(x, x + w, Math.max(textWidth(name), textWidth(size)), labels.list);
      if (name && at !== null) {
        group.append(svg('text', { x: at, y: top + 17, class: 'on-' + segment.fill, text: name }),
          svg('text', { x: at, y: top + 31, class: 'on-' + segment.fill, text: size }));
      }
    }
    picture.append(group);
    x += w;
  });
  picture.append(svg('rect', { class: 'frame', x: 0.5, y: top, width: width - 1, height }));
  for (const label of labels.list) {
    picture.append(svg('line', { class: 'leader', x1: label.x, x2: label.x, y1: label.lane * 15 + 4, y2: top }),
      svg('line', { class: 'mark', x1: label.x, x2: label.x, y1: top, y2: top + height }),
      svg('text', { x: label.end ? label.x - 4 : label.x + 4, y: label.lane * 15 + 12, 'text-anchor': label.end ? 'end' : 'start', text: label.text }));
  }
  const steps = width < 500 ? [0, 50, 100] : [0, 25, 50, 75, 100];
  for (const step of steps) {
    const at = step / 100 * width;
    picture.append(svg('g', { class: 'tick' }, svg('text', { x: Math.min(Math.max(at, 0), width), y: top + height + 15,
      'text-anchor': step === 0 ? 'start' : step === 100 ? 'end' : 'middle', text: step === 0 ? '0' : step + '% · ' + bytes(Math.round(capacity * step / 100)) })));
  }
  return picture;
}

// A place where no threshold line crosses a text of this width.
function clear(from, to, width, marks) {
  const lines = marks.map(mark => mark.x);
  const fits = at => at + width <= to - 4 && !lines.some(line => line > at - 3 && line < at + width + 3);
  const found = [from + 5, ...lines.filter(line => line > from).map(line => line + 5)].find(fits);
  return found === undefined ? null : found;
}

// The labels of thresholds, to the left of their lines: each further right one a lane higher, where it would
// lie over another label or over that one's line.
function thresholdLabels(marks, width) {
  const byPercent = new Map();
  for (const mark of marks) {
    if (!(mark.percent >= 0 && mark.percent <= 100)) continue;
    if (!byPercent.has(mark.percent)) byPercent.set(mark.percent, []);
    byPercent.get(mark.percent).push(safe(mark.name));
  }
  const list = [...byPercent].sort((a, b) => a[0] - b[0]).map(([at, names]) => {
    const x = at / 100 * width, end = at > 33;
    const text = fit(percent(at) + ' ' + names.join(', '), Math.max((end ? x : width - x) - 6, 20));
    const w = textWidth(text) + 8;
    return { x, end, text, from: end ? x - w : x, to: end ? x : x + w, up: 0 };
  });
  const settle = (label, before) => {
    for (const other of before) if (label.from < other.to + 6 && other.from < label.to + 6) label.up = Math.max(label.up, other.up + 1);
  };
  const ends = list.filter(label => label.end), starts = list.filter(label => !label.end).reverse();
  ends.forEach((label, at) => settle(label, ends.slice(0, at)));
  starts.forEach((label, at) => settle(label, [...ends, ...starts.slice(0, at)]));
  const lanes = list.reduce((most, label) => Math.max(most, label.up + 1), 0);
  for (const label of list) label.lane = lanes - 1 - label.up;
  return { list, lanes };
}
