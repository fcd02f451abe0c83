// Usage of the filesystems over time, and the predicted and measured bytes of each run.

// Runs that deleted something: they are shown on the curve.
function actingRuns() {
  return (REPORT.runs || []).filter(run => run.command !== 'scan' && (run.deleted || []).length)
    .sort((a, b) => a.started_at < b.started_at ? -1 : a.started_at > b.started_at ? 1 : 0);
}

function usage() {
  const node = section('usage', 'Usage over time', 'How full each filesystem was, from recorded scans. Numbered lines are runs that deleted something.');
  const runs = actingRuns();
  const numbers = new Map(runs.map((run, at) => [run.run_id, at + 1]));
  const series = (REPORT.usage || []).filter(one => one.points.length);
  if (!series.length) node.append(empty(REPORT.history_complete === false ? 'There are records of this node, but they could not be read: see How it was measured.'
    : 'No records: nothing was scanned on this node before.'));
  for (const one of series) node.append(oneSeries(one, runs.filter(run => !run.filesystems.length || notable(run).some(part => part.mount === one.mount)), numbers));
  node.append(runsPart(numbers));
  return node;
}

// The filesystems that were short of space or on which a run freed some; without any, the first.
function notable(run) {
  const some = run.filesystems.filter(one => one.started.length || one.measured_bytes);
  return some.length ? some : run.filesystems.slice(0, 1);
}

function usedText(run) {
  const parts = notable(run).filter(one => one.usage_before_percent !== null);
  const text = one => percent(one.usage_before_percent) + (one.usage_after_percent === null ? '' : ' → ' + percent(one.usage_after_percent));
  return parts.length ? parts.map(one => (run.filesystems.length > 1 ? safe(one.mount) + ' ' : '') + text(one)).join(', ') : '–';
}

// A dead node's records name its filesystems as the node itself did, without the place where they are mounted now.
function filesystemOf(series) {
  const here = ((REPORT.sysroot || '') + series.mount).replace(/(.)\/+$/, '$1');
  const all = REPORT.filesystems;
  return all.find(one => one.mount === here) || all.find(one => one.mount === series.mount) || all.find(one => one.device === series.device);
}

function oneSeries(series, runs, numbers) {
  const points = series.points.map(point => ({ ...point, time: Date.parse(point.at) })).filter(point => !isNaN(point.time)).sort((a, b) => a.time - b.time);
  const filesystem = filesystemOf(series);
  const canvas = el('div', { class: 'canvas' });
  const readout = el('p', { class: 'readout note' });
  const figure = el('figure', { class: 'series', 'data-mount': series.mount }, el('h3', { text: safe(series.mount) }), canvas,
    legend([['curve', 'used (the line is the mean, the band from the lowest to the highest reading)']]), readout);
  const sum = 'From ' + when(series.points[0].at) + ' to ' + when(series.points[series.points.length - 1].at) + ', ' + many(points.length, 'reading') + ', '
    + bytes(Math.min(...points.map(point => point.used_bytes.min))) + ' to ' + bytes(Math.max(...points.map(point => point.used_bytes.max))) + ' used.';
  readout.textContent = sum;
  drawn(canvas, width => usagePicture(points, filesystem, runs, numbers, width, point => {
    readout.textContent = point ? when(point.at) + ': ' + bytes(point.used_bytes.avg) + ' used'
      + (point.used_bytes.min === point.used_bytes.max ? '' : ' (' + bytes(point.used_bytes.min) + ' to ' + bytes(point.used_bytes.max) + ')') + ' of ' + bytes(point.capacity_bytes) : sum;
  }, sum));
  figure.append(el('details', { class: 'no-print' }, el('summary', { text: 'Readings as a table' }), new Table({
    id: 'readings-' + safe(series.mount).replace(/\W/g, '-'), caption: 'Readings of ' + safe(series.mount), rows: [...points].reverse(), one: 'reading', columns: [
      { label: 'Time', get: point => point.time, cell: point => when(point.at), kind: 'nowrap' },
      { label: 'Used, lowest', get: point => point.used_bytes.min, bytes: true },
      { label: 'Used, mean', get: point => point.used_bytes.avg, bytes: true },
      { label: 'Used, highest', get: point => point.used_bytes.max, bytes: true },
      { label: 'Capacity', get: point => point.capacity_bytes, bytes: true }] }).element));
  return figure;
}

// Round numbers of one IEC unit.
function byteTicks(most, wanted) {
  let unit = 1;
  while (most / unit >= 1024 && unit < 2 ** 60) unit *= 1024;
  const rough = most / unit / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(times => times * power).find(step => step >= rough * 0.8) * unit;
  const name = unit === 1 ? 'B' : UNITS[Math.round(Math.log2(unit) / 10) - 1];
  const ticks = [];
  for (let at = 0; at <= most; at += step) ticks.push({ at, text: at === 0 ? '0' : +(at / unit).toFixed(2) + ' ' + name });
  return ticks;
}

const HOUR = 3600e3, DAY = 24 * HOUR;
const STEPS = [60e3, 5 * 60e3, 15 * 60e3, 30 * 60e3, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY, 90 * DAY, 180 * DAY, 365 * DAY];
function timeTicks(from, to, wanted) {
  const step = STEPS.find(step => (to - from) / step <= wanted) || Math.ceil((to - from) / wanted / DAY) * DAY;
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const text = new Date(at).toISOString();
    ticks.push({ at, text: step >= DAY ? text.slice(0, 10) : step >= HOUR && at % DAY === 0 ? text.slice(5, 10) : text.slice(11, 16) });
  }
  return ticks;
}

function usagePicture(points, filesystem, runs, numbers, width, told, sum) {
  const left = 66, right = 8, top = 26, height = 270, bottom = 22;
  const first = points[0].time, last = points[points.length - 1].time;
  // A single reading, or a span of none, still needs a width.
  const runTimes = runs.map(run => Date.parse(run.started_at)).filter(time => time >= first - DAY && time <= last + DAY);
  let from = Math.min(first, ...runTimes), to = Math.max(last, ...runTimes);
  if (to - from < 60e3) { from -= 30 * 60e3; to += 30 * 60e3; }
  const capacity = Math.max(...points.map(point => point.capacity_bytes), 1);
  const most = Math.max(capacity, ...points.map(point => point.used_bytes.max));
  const x = time => left + (time - from) / (to - from) * (width - left - right);
  const y = value => top + height - value / most * height;
  const picture = svg('svg', { viewBox: '0 0 ' + width + ' ' + (top + height + bottom), role: 'slider', tabindex: '0', 'aria-valuemin': 0, 'aria-valuemax': points.length - 1,
    'aria-valuenow': points.length - 1, 'aria-valuetext': sum, 'aria-label': 'Curve of used bytes; the arrow keys go through the readings' });
  for (const tick of byteTicks(most, 5)) {
    picture.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(tick.at), y2: y(tick.at) }),
      svg('g', { class: 'tick' }, svg('text', { x: left - 8, y: y(tick.at) + 4, 'text-anchor': 'end', text: tick.text })));
  }
  let free = -Infinity;
  for (const tick of timeTicks(from, to, Math.max(2, Math.floor((width - left) / 90)))) {
    const w = textWidth(tick.text);
    const at = Math.min(Math.max(x(tick.at), left + w / 2 - 10), width - right - w / 2 + 8);
    if (at - w / 2 < free) continue;
    free = at + w / 2 + 10;
    picture.append(svg('line', { class: 'grid', x1: x(tick.at), x2: x(tick.at), y1: top, y2: top + height }),
      svg('g', { class: 'tick' }, svg('text', { x: at, y: top + height + 16, 'text-anchor': 'middle', text: tick.text })));
  }
  picture.append(svg('line', { class: 'capacity', x1: left, x2: width - right, y1: y(capacity), y2: y(capacity) }));
  // A threshold counts what root reserves as used, as the kubelet does.
  const labels = [];
  const levelOf = mark => mark.percent / 100 * filesystem.capacity_bytes - (filesystem.reserved_bytes || 0);
  const marks = ((filesystem && filesystem.thresholds) || []).filter(mark => mark.of !== 'inodes' && levelOf(mark) > 0).map(mark => ({ at: y(levelOf(mark)), name: percent(mark.percent) + ' ' + safe(mark.name) }));
  for (const mark of marks) {
    picture.append(svg('line', { class: 'mark', x1: left, x2: width - right, y1: mark.at, y2: mark.at }));
    // Above its line, or below where another line is as near; beside a label that is as high, not over it.
    const base = marks.some(other => other.at < mark.at && other.at > mark.at - 14) && !marks.some(other => other.at > mark.at && other.at < mark.at + 14) ? mark.at + 12 : mark.at - 3;
    let from = left + 6;
    for (const other of labels) if (Math.abs(other.base - base) < 13) from = Math.max(from, other.to + 14);
    const text = fit(mark.name, Math.min(width / 2, width - right - from));
    if (!text) continue;
    labels.push({ base, to: from + textWidth(text), text: svg('text', { class: 'muted on-line', x: from, y: base, text }) });
  }
  picture.append(...labels.map(label => label.text));
  const line = value => points.map((point, at) => (at ? 'L' : 'M') + x(point.time).toFixed(1) + ' ' + y(value(point)).toFixed(1)).join('');
  const back = [...points].reverse().map(point => 'L' + x(point.time).toFixed(1) + ' ' + y(point.used_bytes.min).toFixed(1)).join('');
  picture.append(svg('path', { class: 'band', d: line(point => point.used_bytes.max) + back + 'Z' }), svg('path', { class: 'mean', d: line(point => point.used_bytes.avg), 'data-points': points.length }));
  if (points.length === 1) picture.append(svg('circle', { class: 'dot', cx: x(first), cy: y(points[0].used_bytes.avg), r: 4 }));
  let edge = -Infinity;
  for (const run of runs) {
    const time = Date.parse(run.started_at);
    if (!(time >= from && time <= to)) continue;
    const at = x(time), number = '' + numbers.get(run.run_id), w = textWidth(number) + 8;
    picture.append(svg('line', { class: 'run', 'data-run': run.run_id, x1: at, x2: at, y1: top - 6, y2: top + height }));
    if (at - w / 2 < edge) continue;
    edge = at + w / 2 + 2;
    picture.append(svg('g', { class: 'run-label' }, svg('rect', { x: at - w / 2, y: 3, width: w, height: 15, rx: 3 }), svg('text', { x: at, y: 14.5, 'text-anchor': 'middle', text: number })));
  }
  const cross = svg('line', { class: 'cross', y1: top, y2: top + height, visibility: 'hidden' });
  const dot = svg('circle', { class: 'dot', r: 4, visibility: 'hidden' });
  picture.append(cross, dot);
  let now = points.length - 1;
  const point = at => {
    now = Math.max(0, Math.min(points.length - 1, at));
    const here = points[now];
    fillIn(cross, { x1: x(here.time), x2: x(here.time), visibility: 'visible' }, []);
    fillIn(dot, { cx: x(here.time), cy: y(here.used_bytes.avg), visibility: 'visible' }, []);
    told(here);
    picture.setAttribute('aria-valuenow', now);
    picture.setAttribute('aria-valuetext', when(here.at) + ', ' + bytes(here.used_bytes.avg) + ' used');
  };
  const away = () => { cross.setAttribute('visibility', 'hidden'); dot.setAttribute('visibility', 'hidden'); told(null); };
  picture.addEventListener('pointermove', event => {
    const box = picture.getBoundingClientRect();
    const time = from + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (to - from);
    let low = 0, high = points.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (points[middle].time < time) low = middle + 1; else high = middle; }
    point(low > 0 && time - points[low - 1].time < points[low].time - time ? low - 1 : low);
  });
  picture.addEventListener('pointerleave', away);
  picture.addEventListener('blur', away);
  picture.addEventListener('keydown', event => {
    const moves = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: points.length - 1, PageUp: now + 10, PageDown: now - 10 };
    if (event.key in moves) { event.preventDefault(); point(moves[event.key]); }
  });
  return picture;
}

function runsPart(numbers) {
  const runs = (REPORT.runs || []).filter(run => run.command !== 'scan');
  const part = el('div', { id: 'runs' }, el('h3', { text: 'Runs: what was predicted, what was measured' }));
  if (!runs.length) { part.append(empty('No recorded run has deleted anything.')); return part; }
  const most = Math.max(1, ...runs.map(run => Math.max(run.predicted_bytes || 0, run.measured_bytes || 0)));
  part.append(legend([['free', 'predicted (the frame)'], ['curve', 'measured: bytes freed (the bar)']]));
  part.append(new Table({ id: 'runs-table', caption: 'Runs with deletions, the newest first', rows: runs, one: 'run', size: 15, sort: 1, columns: [
    { label: 'No.', get: run => numbers.get(run.run_id) || 0, cell: run => '' + (numbers.get(run.run_id) || '–'), kind: 'num' },
    { label: 'Started', get: run => Date.parse(run.started_at) || 0, cell: run => when(run.started_at), kind: 'nowrap' },
    { label: 'Command', get: run => run.command, cell: run => safe(run.command) },
    { label: 'Outcome', get: run => run.outcome_text, cell: run => run.outcome_text, kind: 'nowrap' },
    { label: 'Used', get: run => Math.max(0, ...notable(run).map(one => one.usage_before_percent || 0)), cell: usedText, kind: 'nowrap' },
    { label: 'Deleted', get: run => run.deleted.filter(one => !one.error).length, kind: 'num' },
    { label: 'Predicted', get: run => run.predicted_bytes, bytes: true },
    { label: 'Measured', get: run => run.measured_bytes, bytes: true },
    { label: 'Difference', get: run => run.measured_bytes === null || run.predicted_bytes === null ? null : run.measured_bytes - run.predicted_bytes, bytes: true },
    { label: 'Predicted and measured', get: run => run.measured_bytes, cell: run => runBars(run, most), kind: 'chart-cell', fixed: true },
  ] }).element);
  const deletions = runs.flatMap(run => run.deleted.map(one => ({ run, one })));
  if (deletions.length) {
    part.append(el('details', null, el('summary', { text: many(deletions.length, 'deletion') }), new Table({ id: 'deletions', caption: 'Deletions, the newest first', rows: deletions, one: 'deletion', sort: 0, columns: [
      { label: 'Time', get: row => Date.parse(row.one.at) || 0, cell: row => when(row.one.at), kind: 'nowrap' },
      { label: 'Run', get: row => numbers.get(row.run.run_id) || 0, cell: row => '' + (numbers.get(row.run.run_id) || '–'), kind: 'num' },
      { label: 'Kind', get: row => row.one.kind, cell: row => safe(row.one.kind) },
      { label: 'Name', get: row => row.one.names[0] || '', cell: row => row.one.names.length ? row.one.names.map(safe).join(', ') : '–', kind: 'name' },
      { label: 'Id', get: row => row.one.id, cell: row => idCell(row.one.id), kind: 'nowrap' },
      { label: 'Why', get: row => row.one.reason, cell: row => safe(row.one.reason) },
      { label: 'Predicted', get: row => row.one.predicted_bytes, bytes: true },
      { label: 'Measured', get: row => row.one.measured_bytes, bytes: true },
      { label: 'Error', get: row => row.one.error || '', cell: row => row.one.error ? safe(row.one.error) : '', kind: 'wide' },
    ] }).element));
  }
  return part;
}

function runBars(run, most) {
  const wide = 200, predicted = (run.predicted_bytes || 0) / most * wide, measured = Math.max(run.measured_bytes || 0, 0) / most * wide;
  return svg('svg', { viewBox: '0 0 202 16', preserveAspectRatio: 'none', role: 'img', height: 16, 'aria-label': 'predicted ' + bytes(run.predicted_bytes) + ', measured ' + bytes(run.measured_bytes) },
    svg('rect', { class: 'measured', x: 1, y: 4, width: measured, height: 8 }), svg('rect', { class: 'predicted', x: 1, y: 1.5, width: predicted, height: 13 }));
}
