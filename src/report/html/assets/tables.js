// Layers, images, containers and leaks as tables: the whole lists, the largest first.

function includes(...texts) {
  return query => row => texts.some(text => { const value = text(row); return value !== null && value !== undefined && String(value).toLowerCase().includes(query); });
}

function tables(model) {
  const node = section('tables', 'Tables', (OTHERS.length ? 'The largest of each kind; what is smaller is summed in the last row.' : 'The whole lists, the largest first.')
    + ' The columns sort, the fields filter; hover to see exact bytes.');
  const part = (id, title, rows, options, rest = NOTHING) => {
    const h3 = el('h3', { text: title + ' (' + count(rows.length + rest.count) + ')' });
    node.append(h3);
    if (rest.count) node.append(el('p', { class: 'note', text: omittedNote(rows.length, rest, options.one) }));
    node.append(rows.length ? new Table({ id, rows, rest, ...options }).element : empty('There are none.'));
  };
  const several = SCAN.stores.length > 1;
  const store = { label: 'Store', get: row => row.store, cell: row => safe(row.store), kind: 'path' };
  const columns = list => list.filter(Boolean);

  part('images-table', 'Images', SCAN.images, {
    caption: 'Images', one: 'image', sort: 3, placeholder: 'name, id, digest, state', columns: columns([
      { label: 'Image', get: row => row.names[0] || '', cell: row => row.names.length ? row.names.map(safe).join(', ') : '<none>', kind: 'name' },
      { label: 'Id', get: row => row.id, cell: row => idCell(row.id), kind: 'nowrap' },
      { label: 'State', get: row => STANDING_WORD[standing(row)], kind: 'nowrap' },
      { label: 'Exclusive', get: row => row.exclusive_bytes, bytes: true },
      { label: 'Fair', get: row => row.fair_bytes, bytes: true },
      { label: 'Shared', get: row => row.shared_bytes, bytes: true },
      { label: 'Total', get: row => row.total_bytes, bytes: true },
      { label: 'Deletion frees', get: row => row.frees_bytes, bytes: true },
      { label: 'Last used', get: row => row.last_used ? Date.parse(row.last_used) : null, cell: row => when(row.last_used), kind: 'nowrap' },
      { label: 'First detected', get: row => row.first_detected ? Date.parse(row.first_detected) : null, cell: row => when(row.first_detected), kind: 'nowrap' },
      several && store]),
    matcher: includes(row => row.names.join(' '), row => row.id, row => row.digests.join(' '), row => STANDING_WORD[standing(row)]),
  }, rest('images'));
  node.append(el('p', { class: 'note', text: 'The fair share divides each layer equally among the images and containers that use it. Only this column adds up: with that of the containers, and with leaks, metadata and other files, it is what the stores hold.' }));

  part('layers-table', 'Layers', SCAN.layers, {
    caption: 'Layers, snapshots and blobs', one: 'layer', sort: 3, placeholder: 'id, digest, image, container', columns: columns([
      { label: 'Layer', get: row => row.id, cell: row => idCell(row.id), kind: 'nowrap' },
      { label: 'Kind', get: row => row.kind, cell: row => row.read_write ? 'writable' : safe(row.kind) },
      { label: 'References', get: row => row.refcount, kind: 'num' },
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Inodes', get: row => row.inodes, kind: 'num' },
      { label: 'Images and containers', get: row => layerUsers(model, row, 1), cell: row => layerUsers(model, row, 3), kind: 'name' },
      { label: 'Created', get: row => row.created_at ? Date.parse(row.created_at) : null, cell: row => when(row.created_at), kind: 'nowrap' },
      several && store]),
    matcher: query => { const hit = layerMatcher(model, query); return layer => hit({ layer, leak: model.leaks.get(key(layer.store, layer.id)) }); },
  }, rest('layers'));

  part('containers-table', 'Containers', SCAN.containers, {
    caption: 'Containers, with their writable layers', one: 'container', sort: 5, placeholder: 'name, id, image, state', columns: columns([
      { label: 'Container', get: row => row.name, cell: row => safe(row.name) + (row.sandbox ? ' (sandbox)' : ''), kind: 'name' },
      { label: 'Id', get: row => row.id, cell: row => idCell(row.id), kind: 'nowrap' },
      { label: 'Image', get: row => row.image || '', cell: row => row.image ? safe(row.image) : '–', kind: 'name' },
      { label: 'Owner', get: row => row.owner },
      { label: 'State', get: row => row.state },
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Fair', get: row => row.fair_bytes, bytes: true },
      { label: 'Created', get: row => row.created_at ? Date.parse(row.created_at) : null, cell: row => when(row.created_at), kind: 'nowrap' },
      several && store]),
    matcher: includes(row => row.name, row => row.id, row => row.image, row => row.owner, row => row.state),
  }, rest('containers'));

  part('leaks-table', 'Leaks', SCAN.leaks, {
    caption: 'Leaks and inconsistencies', one: 'leak', sort: 3, placeholder: 'class, id, path, verdict', columns: columns([
      { label: 'Class', get: row => row.class, cell: row => safe(row.class), kind: 'nowrap' },
      { label: 'Id', get: row => row.id, cell: row => idCell(row.id), kind: 'nowrap' },
      { label: 'Verdict', get: row => row.verdict },
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Age', get: row => row.age_seconds, cell: row => age(row.age_seconds), kind: 'num' },
      { label: 'Evidence', get: row => row.evidence, cell: row => safe(row.evidence), kind: 'wide' },
      { label: 'Path', get: row => row.path, cell: row => el('span', { class: 'path', text: safe(row.path) }), kind: 'wide' }]),
    matcher: includes(row => row.class, row => row.id, row => row.path, row => row.verdict, row => row.evidence),
  }, rest('leaks'));
  const { logs = [], pods = [] } = REPORT.top;
  if (logs.length) {
    part('logs-table', 'Largest logs', logs, { caption: 'The largest log files', one: 'log', sort: 0, placeholder: 'path, pod', columns: [
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Pod', get: row => row.pod || '', cell: row => row.pod ? safe(row.pod) : '–', kind: 'nowrap' },
      { label: 'Container', get: row => row.container || '', cell: row => row.container ? safe(row.container) : '–', kind: 'nowrap' },
      { label: 'Path', get: row => row.path, cell: row => el('span', { class: 'path', text: safe(row.path) }), kind: 'wide' }],
    matcher: includes(row => row.path, row => row.pod) });
  }
  if (pods.length) {
    part('pods-table', 'Pods outside the stores', pods, { caption: 'Pod data outside the stores', one: 'row', sort: 0, placeholder: 'pod, path', columns: [
      { label: 'Bytes', get: row => row.bytes, bytes: true },
      { label: 'Pod', get: row => row.pod, cell: row => safe(row.pod), kind: 'name' },
      { label: 'What', get: row => row.kind },
      { label: 'Path', get: row => row.path, cell: row => el('span', { class: 'path', text: safe(row.path) }), kind: 'wide' }],
    matcher: includes(row => row.path, row => row.pod) });
  }
  return node;
}

// What is not listed of a kind, next to its table or picture.
function omittedNote(listed, rest, one) {
  return 'Listed are the largest ' + count(listed) + ' of ' + many(listed + rest.count, one) + '. The other ' + count(rest.count) + ' hold ' + bytes(rest.bytes)
    + ' together; all sums include them. The whole list: layersweep report --format json.';
}

function layerUsers(model, layer, most) {
  const names = layer.images.slice(0, most).map(id => imageTitle(model, layer.store, id))
    .concat(layer.containers.slice(0, Math.max(0, most - layer.images.length)).map(id => containerTitle(model, layer.store, id)));
  const all = Math.max(layer.images.length + layer.containers.length, OTHERS.length ? layer.refcount : 0);
  if (!all) return 'nobody';
  return names.join(', ') + (all > names.length ? ' and ' + count(all - names.length) + ' more' : '');
}
