// From the document to what pictures and tables share.

const REPORT = JSON.parse(document.getElementById('report').textContent);
const SCAN = REPORT.scan;

// Of a large store the page lists the largest objects only, and sums the others of each kind.
const OTHERS = REPORT.others || [];
const NOTHING = { count: 0, bytes: 0 };
function rest(kind) { return OTHERS.find(row => row.kind === kind) || NOTHING; }

function key(store, id) { return store + '\n' + id; }

function buildModel() {
  const model = { images: new Map(), containers: new Map(), layers: new Map(), tops: new Map(), leaks: new Map() };
  for (const image of SCAN.images) {
    model.images.set(key(image.store, image.id), image);
    if (image.layers.length) {
      const top = key(image.store, image.layers[0]);
      if (!model.tops.has(top)) model.tops.set(top, []);
      model.tops.get(top).push(image);
    }
  }
  for (const container of SCAN.containers) model.containers.set(key(container.store, container.id), container);
  for (const layer of SCAN.layers) model.layers.set(key(layer.store, layer.id), layer);
  for (const leak of SCAN.leaks) model.leaks.set(key(leak.store, leak.id), leak);
  return model;
}

function imageName(image) { return image.names.length ? safe(image.names[0]) : '<none> ' + shortId(image.id); }
function imageTitle(model, store, id) {
  const image = model.images.get(key(store, id));
  return image ? imageName(image) : shortId(id);
}
function containerTitle(model, store, id) {
  const container = model.containers.get(key(store, id));
  return container && container.name ? safe(container.name) : shortId(id);
}

function layerLabel(model, layer) {
  const images = model.tops.get(key(layer.store, layer.id));
  if (images) {
    const named = images.find(image => image.names.length);
    const label = named ? shortName(named.names[0]) : '<none> ' + shortId(images[0].id);
    return images.length > 1 ? label + ' +' + (images.length - 1) : label;
  }
  if (layer.read_write && layer.containers.length) return containerTitle(model, layer.store, layer.containers[0]);
  return shortId(layer.id);
}

function shade(layer, leak) {
  if (layer.refcount === 0 || (leak && leak.verdict === 'reclaim')) return 'leak';
  if (layer.refcount === 1) return 'r1';
  if (layer.refcount <= 3) return 'r2';
  if (layer.refcount <= 7) return 'r3';
  if (layer.refcount <= 15) return 'r4';
  return 'r5';
}
const SHADES = [['r1', '1 image or container'], ['r2', '2–3'], ['r3', '4–7'], ['r4', '8–15'], ['r5', '16 or more'],
  ['leak', 'none: a leak'], ['more', 'many small ones'], ['group', 'store or group']];

// The forest of layers: stores at the top, in them every chain from its base on. Each listed layer is in it
// exactly once, whatever its record says of its parent; the layers that are not listed are one cell.
function buildForest(model) {
  const stores = new Map();
  const storeNode = root => {
    if (!stores.has(root)) {
      const store = SCAN.stores.find(store => store.root === root);
      stores.set(root, { kind: 'group', shade: 'group', own: 0, label: safe(root), children: [],
        note: store ? safe(store.kind + ', ' + store.driver) : '', groups: new Map() });
    }
    return stores.get(root);
  };
  const group = (root, name, note) => {
    const groups = storeNode(root).groups;
    if (!groups.has(name)) groups.set(name, { kind: 'group', shade: 'group', own: 0, label: name, note, children: [] });
    return groups.get(name);
  };
  for (const store of SCAN.stores) storeNode(store.root);
  const nodes = new Map();
  for (const [at, layer] of model.layers) {
    const leak = model.leaks.get(at);
    nodes.set(at, { kind: 'layer', layer, leak, own: layer.bytes, shade: shade(layer, leak), label: layerLabel(model, layer), children: [] });
  }
  const parentOf = layer => layer.parent === null ? undefined : nodes.get(key(layer.store, layer.parent));
  // Records may name each other as parents: each chain is followed once, and a ring is cut.
  const state = new Map();
  const hang = (start) => {
    const path = [];
    let node = start;
    while (node && !state.has(node)) { state.set(node, 1); path.push(node); node = parentOf(node.layer); }
    const ring = node && state.get(node) === 1 ? node : null;
    for (const each of path.reverse()) {
      const parent = parentOf(each.layer);
      // In a ring the one that closes it becomes a root.
      if (parent && !(ring && each === path[0])) parent.children.push(each);
      else if (each.layer.kind === 'blob') group(each.layer.store, 'Content blobs', 'what was pulled, as it came').children.push(each);
      else storeNode(each.layer.store).children.push(each);
      state.set(each, 2);
    }
  };
  for (const node of nodes.values()) if (!state.has(node)) hang(node);
  const paths = new Set(SCAN.layers.map(layer => layer.path));
  for (const leak of SCAN.leaks) {
    const at = key(leak.store, leak.id);
    if (leak.bytes === 0 || model.layers.has(at) || model.containers.has(at) || paths.has(leak.path)) continue;
    group(leak.store, 'Leaks outside the chains', 'on the disk, but in no record').children.push(
      { kind: 'leak', leak, own: leak.bytes, shade: 'leak', label: safe(leak.class) + ' ' + shortId(leak.id), children: [] });
  }
  const top = [...stores.values()];
  for (const store of top) { store.children.push(...store.groups.values()); delete store.groups; }
  const root = top.length === 1 ? top[0] : { kind: 'group', shade: 'group', own: 0, label: 'All stores', note: '', children: top };
  root.children.push(...restCell('layers', 'smaller layer'));
  return root;
}

function restCell(kind, one) {
  const { count, bytes } = rest(kind);
  return count ? [{ kind: 'rest', shade: 'more', own: bytes, count, label: many(count, one), children: [] }] : [];
}

// registry / repository / tag of a reference, as the runtimes read it.
function splitName(name) {
  let rest = name, tag = '';
  const at = rest.indexOf('@');
  if (at >= 0) { tag = rest.slice(at); rest = rest.slice(0, at); }
  else {
    const colon = rest.lastIndexOf(':');
    if (colon > rest.lastIndexOf('/')) { tag = rest.slice(colon); rest = rest.slice(0, colon); }
  }
  const slash = rest.indexOf('/');
  const first = slash < 0 ? '' : rest.slice(0, slash);
  const host = first.includes('.') || first.includes(':') || first === 'localhost';
  return { registry: host ? first : '(no registry)', repository: host ? rest.slice(slash + 1) : rest, tag: tag || '(no tag)' };
}

function standing(image) {
  if (image.in_use) return 'used';
  return image.pinned ? 'pinned' : 'unused';
}
const STANDINGS = [['used', 'in use by a container'], ['pinned', 'not in use, kept by configuration'], ['unused', 'not in use'],
  ['more', 'many small ones'], ['group', 'registry or repository']];
const STANDING_WORD = { used: 'in use', pinned: 'pinned', unused: 'not in use' };

function buildNames() {
  const root = { kind: 'group', shade: 'group', own: 0, label: 'All registries', note: '', children: [] };
  const registries = new Map(), repositories = new Map();
  const named = (map, at, label, parent) => {
    if (!map.has(at)) {
      const node = { kind: 'group', shade: 'group', own: 0, label, note: '', children: [] };
      map.set(at, node);
      parent.children.push(node);
    }
    return map.get(at);
  };
  for (const image of SCAN.images) {
    const name = image.names.length ? splitName(image.names[0]) : { registry: '<none>', repository: 'images without a name', tag: shortId(image.id) };
    const registry = named(registries, name.registry, safe(name.registry), root);
    const repository = named(repositories, name.registry + '\n' + name.repository, safe(name.repository), registry);
    repository.children.push({ kind: 'image', image, own: image.exclusive_bytes, shade: standing(image),
      label: safe(name.tag), children: [] });
  }
  // A repository with one tag is drawn as one.
  for (const registry of root.children) {
    registry.children = registry.children.map(repository => {
      if (repository.children.length !== 1) return repository;
      const only = repository.children[0];
      only.label = only.image.names.length ? repository.label + only.label : '<none> ' + only.label;
      return only;
    });
  }
  root.children.push(...restCell('images', 'smaller image'));
  return root;
}
