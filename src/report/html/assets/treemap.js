// Exclusive bytes by registry, repository and tag: the area of a cell is the exclusive bytes of its image.

function treemap(model) {
  if (!SCAN.images.length) return empty('There are no images.');
  const root = d3.hierarchy(buildNames()).sum(data => data.own).sort((a, b) => b.value - a.value);
  if (!root.value) return empty('No image has exclusive bytes: all their layers are shared.');
  return new Zoom({
    id: 'treemap', name: 'treemap of the images', root, layout: treemapLayout, describe: cell => describeImage(model, cell),
    placeholder: 'image name, id, digest', count: number => many(number, 'image'), legend: legend(STANDINGS),
    matcher: query => ({ image }) => Boolean(image) && (image.id.includes(query) || image.names.some(name => name.toLowerCase().includes(query))
      || image.digests.some(digest => digest.includes(query))),
  }).element;
}

const HEADER = 17;

function treemapLayout(at, width, minimum) {
  const height = Math.max(260, Math.min(460, Math.round(width * 0.42)));
  // Area of one cell that is too small to be seen: it joins its neighbours before they get their places.
  const least = at.value * (minimum * 18) / (width * height);
  const copy = node => {
    const twin = { node, own: node.data.own };
    const children = node.children || [];
    let seen = 0;
    while (seen < children.length && children[seen].value >= least) seen += 1;
    if (seen === children.length - 1) seen += 1;
    const more = children.slice(seen);
    if (children.length) twin.children = children.slice(0, seen).map(copy);
    if (more.length) twin.children.push({ node, more, own: more.reduce((sum, child) => sum + child.value, 0) });
    return twin;
  };
  const root = d3.hierarchy(copy(at)).sum(twin => twin.own);
  d3.treemap().size([width, height]).tile(d3.treemapSquarify.ratio(1.3)).round(true)
    .paddingInner(1).paddingOuter(node => node.height ? 2 : 0)
    .paddingTop(node => node.children && node.y1 - node.y0 > HEADER + 8 && node.x1 - node.x0 > 24 ? HEADER : 2)(root);
  const cells = [];
  root.each(place => {
    const { node, more, own } = place.data;
    const inside = more ? more.reduce((sum, child) => sum + imagesIn(child), 0) : 0;
    const open = place.children && place.children.length;
    cells.push({ node, more, level: place.depth + 1, x: place.x0, y: place.y0, w: place.x1 - place.x0, h: place.y1 - place.y0,
      own: more ? own : node.data.own, total: place.value, shade: more ? 'more' : node.data.shade,
      header: open ? (place.y1 - place.y0 > HEADER + 8 ? HEADER : 1) : 0, label: more ? many(inside, 'smaller image') : node.data.label });
  });
  // Parents before children, so that children lie on top.
  cells.sort((a, b) => a.level - b.level);
  return { cells, height };
}

function imagesIn(node) { return node.leaves().reduce((sum, leaf) => sum + (leaf.data.count || 1), 0); }

function describeImage(model, cell) {
  const data = cell.node.data;
  if (data.kind === 'rest') return describeRest(cell);
  if (cell.more) {
    return [el('h3', { text: capital(cell.label) }), el('p', { class: 'note', text: 'of ' + data.label + '; zoom in to see them' }), facts([['exclusive', exact(cell.total)]])];
  }
  if (data.kind === 'group') {
    const leaves = cell.node.leaves();
    const idle = leaves.filter(leaf => leaf.data.shade === 'unused');
    return [el('h3', { text: data.label }), facts([['images', count(imagesIn(cell.node))], ['exclusive', exact(cell.node.value)],
      ['of that not in use', exact(idle.reduce((sum, leaf) => sum + leaf.value, 0))]]),
      el('p', { class: 'note', text: 'Bytes shared by several images are not shown here.' })];
  }
  const { image } = data;
  return [
    el('h3', { text: imageName(image) }),
    facts([
      ['id', idCell(image.id)],
      ['other names', image.names.length > 1 ? someOf(image.names.slice(1).map(safe), 4) : null],
      ['exclusive', exact(image.exclusive_bytes)],
      ['shared', exact(image.shared_bytes)],
      ['total', exact(image.total_bytes)],
      ['deletion frees', image.frees_bytes === null ? 'unknown' : exact(image.frees_bytes)],
      ['state', STANDING_WORD[data.shade]],
      ['used by', image.used_by.length ? someOf(image.used_by.map(user => safe(user.name || shortId(user.id))), 4) : null],
      ['pinned by', image.pinned_by.length ? someOf(image.pinned_by.map(safe), 3) : null],
      ['here since', image.first_detected ? when(image.first_detected) : null],
      ['last used', image.last_used ? when(image.last_used) : 'unknown'],
    ]),
  ];
}
