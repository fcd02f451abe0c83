// The forest of layers as an icicle: width = allocated bytes of a layer and all above it, depth = the chain.

function icicle(model) {
  const root = d3.hierarchy(buildForest(model)).sum(data => data.own).sort((a, b) => b.value - a.value);
  if (!root.value) return empty('No layer has any bytes.');
  d3.partition()(root);
  return new Zoom({
    id: 'icicle', name: 'icicle of the layers', root, layout: icicleLayout, describe: cell => describeLayer(model, cell),
    placeholder: 'image, container, layer id, digest', matcher: query => layerMatcher(model, query),
    count: number => many(number, 'layer'), legend: legend(SHADES),
  }).element;
}

// Longer chains are seen from nearer.
const MOST_ROWS = 70;

// Children are sorted, so those that are too small to be seen lie side by side at the end: they are one cell.
function icicleLayout(at, width, minimum) {
  const cells = [];
  const scale = width / (at.x1 - at.x0 || 1);
  const visit = (node, depth) => {
    cells.push({ node, level: depth + 1, x: (node.x0 - at.x0) * scale, w: (node.x1 - node.x0) * scale, depth,
      shade: node.data.shade, label: node.data.label, own: node.data.own, total: node.value });
    const children = node.children || [];
    let seen = 0;
    if (depth < MOST_ROWS) while (seen < children.length && (children[seen].x1 - children[seen].x0) * scale >= minimum) seen += 1;
    if (depth < MOST_ROWS && seen === children.length - 1 && children[seen].value > 0) seen += 1;
    for (const child of children.slice(0, seen)) visit(child, depth + 1);
    const more = children.slice(seen);
    if (more.length) {
      const total = more.reduce((sum, child) => sum + child.value, 0);
      const inside = more.reduce((sum, child) => sum + objects(child), 0);
      cells.push({ node, more, level: depth + 2, x: (more[0].x0 - at.x0) * scale, w: (more[more.length - 1].x1 - more[0].x0) * scale,
        depth: depth + 1, shade: 'more', label: many(inside, 'smaller layer'), own: total, total });
    }
  };
  visit(at, 0);
  const rows = cells.reduce((most, cell) => Math.max(most, cell.depth), 0) + 1;
  const row = Math.max(9, Math.min(26, Math.floor(640 / rows)));
  for (const cell of cells) { cell.y = cell.depth * row; cell.h = row; }
  return { cells, height: rows * row };
}

function layerMatcher(model, query) {
  const images = new Set(), containers = new Set();
  for (const [at, image] of model.images) {
    if (image.id.includes(query) || image.names.some(name => name.toLowerCase().includes(query)) || image.digests.some(digest => digest.includes(query))) images.add(at);
  }
  for (const [at, container] of model.containers) {
    if (container.id.includes(query) || container.name.toLowerCase().includes(query)) containers.add(at);
  }
  // A layer of a large store names only some of its images.
  const of = new Set();
  for (const at of images) { const image = model.images.get(at); for (const id of image.layers) of.add(key(image.store, id)); }
  return ({ layer, leak }) => {
    if (leak && (leak.class.includes(query) || leak.id.toLowerCase().includes(query))) return true;
    if (!layer) return false;
    return layer.id.toLowerCase().includes(query) || (layer.diff_id !== null && layer.diff_id.includes(query))
      || of.has(key(layer.store, layer.id)) || layer.images.some(id => images.has(key(layer.store, id)))
      || layer.containers.some(id => containers.has(key(layer.store, id)));
  };
}

// How many layers or leaks a node stands for, with all above it.
function objects(node) {
  return node.descendants().reduce((sum, each) => sum + (each.data.kind === 'group' ? 0 : each.data.count || 1), 0);
}

function describeRest(cell) {
  return [el('h3', { text: cell.label }), el('p', { class: 'note', text: 'not listed in this page; layersweep report --format json has them' }), facts([['together', exact(cell.total)]])];
}

function describeLayer(model, cell) {
  const data = cell.node.data;
  if (data.kind === 'rest') return describeRest(cell);
  if (cell.more) {
    return [el('h3', { text: capital(cell.label) }), el('p', { class: 'note', text: 'on ' + data.label + '; zoom in to see them' }),
      facts([['together', exact(cell.total)]])];
  }
  const above = cell.node.value - data.own;
  if (data.kind === 'group') {
    return [el('h3', { text: data.label }), el('p', { class: 'note', text: data.note || '' }),
      facts([['holds', exact(cell.node.value)], ['objects', count(objects(cell.node))]])];
  }
  const { layer, leak } = data;
  if (!layer) {
    return [el('h3', { text: 'Leak: ' + safe(leak.class) }), facts([['bytes', exact(leak.bytes)], ['verdict', safe(leak.verdict)],
      ['age', age(leak.age_seconds)], ['evidence', safe(leak.evidence)], ['id', idCell(leak.id)], ['path', el('span', { class: 'path', text: safe(leak.path) })]])];
  }
  const tops = (model.tops.get(key(layer.store, layer.id)) || []).map(imageName);
  const what = layer.read_write ? 'Writable layer' : capital(layer.kind);
  return [
    el('h3', null, what + ' ', idCell(layer.id)),
    facts([
      ['own bytes', exact(layer.bytes)],
      ['with all above', above ? exact(cell.node.value) : null],
      ['inodes', count(layer.inodes)],
      ['needed by', layer.refcount === 0 ? 'nobody' : many(layer.refcount, 'image or container', 'images and containers')],
      ['top layer of', tops.length ? someOf(tops, 4) : null],
      ['images', layer.images.length ? someOf(layer.images.slice(0, 5).map(id => imageTitle(model, layer.store, id)).concat(layer.images.slice(5)), 5) : null],
      ['containers', layer.containers.length ? someOf(layer.containers.slice(0, 5).map(id => containerTitle(model, layer.store, id)).concat(layer.containers.slice(5)), 5) : null],
      ['leak', leak ? safe(leak.class + ' (' + leak.verdict + '): ' + leak.evidence) : null],
      ['made', layer.created_at ? when(layer.created_at) : null],
    ]),
  ];
}
