// What the icicle and the treemap have in common: cells that are looked at by pointer and keyboard,
// zoomed into and out of, and searched.

class Zoom {
  // options: root (d3 hierarchy), layout(root, width, minimum) -> {cells, height}, describe(node) -> nodes
  // of the panel, matches(node, query), name
  constructor(options) {
    Object.assign(this, options);
    this.at = this.root;
    this.query = '';
    this.current = null;
    this.canvas = el('div', { class: 'canvas' });
    this.panel = el('div', { class: 'details', role: 'region', tabindex: '0', 'aria-label': 'Details of the ' + this.name });
    this.crumbs = el('nav', { class: 'crumbs', 'aria-label': 'Where you are in the ' + this.name });
    this.found = el('output', { class: 'note' });
    const id = this.id + '-search';
    this.search = el('input', { type: 'search', id, autocomplete: 'off', spellcheck: 'false', placeholder: this.placeholder,
      on: { input: () => this.look(this.search.value), keydown: event => { if (event.key === 'Enter') this.toFirstMatch(); } } });
    this.back = el('button', { type: 'button', text: 'Zoom out', on: { click: () => this.out() } });
    this.element = el('div', { class: 'zoomable', id: this.id },
      el('div', { class: 'tools' }, el('label', { for: id }, 'Search', this.search), this.back, this.found),
      this.crumbs, el('div', { class: 'picture' }, el('div', null, this.canvas, this.legend), this.panel));
    this.canvas.addEventListener('click', event => { const cell = this.of(event); if (cell) this.enter(cell); });
    this.canvas.addEventListener('pointerover', event => { const cell = this.of(event); if (cell) this.show(cell); });
    this.canvas.addEventListener('pointerleave', () => this.show(this.focused() || this.cells[0]));
    this.canvas.addEventListener('focusin', event => { const cell = this.of(event); if (cell) this.show(cell); });
    this.canvas.addEventListener('keydown', event => this.key(event));
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.round(this.canvas.clientWidth);
      if (width && width !== this.width && !printing) { this.width = width; this.draw(); }
    }).observe(this.canvas);
  }

  of(event) {
    const group = event.target.closest && event.target.closest('.cell');
    return group ? this.cells[+group.dataset.at] : null;
  }
  focused() {
    const group = this.canvas.contains(document.activeElement) ? document.activeElement : null;
    return group && group.dataset.at !== undefined ? this.cells[+group.dataset.at] : null;
  }

  // Cells below the size that can be seen are drawn as one; the size grows until the cells are few.
  draw() {
    const hadFocus = this.canvas.contains(document.activeElement);
    let minimum = 2, drawn = this.layout(this.at, this.width, minimum);
    while (drawn.cells.length > MOST_CELLS) { minimum *= 1.5; drawn = this.layout(this.at, this.width, minimum); }
    this.cells = drawn.cells;
    const picture = svg('svg', { viewBox: '0 0 ' + this.width + ' ' + drawn.height, role: 'tree',
      'aria-label': this.name + '. Arrow keys move, Enter zooms in, Escape zooms out.' });
    this.cells.forEach((cell, at) => { cell.at = at; cell.group = this.cell(cell); picture.append(cell.group); });
    this.under = svg('rect', { class: 'cursor-under', visibility: 'hidden' });
    this.cursor = svg('rect', { class: 'cursor', visibility: 'hidden' });
    picture.append(this.under, this.cursor);
    this.canvas.replaceChildren(picture);
    this.byNode = new Map(this.cells.filter(cell => !cell.more).map(cell => [cell.node, cell]));
    this.path();
    this.mark();
    const first = this.cells[0];
    if (first) {
      first.group.setAttribute('tabindex', '0');
      this.stop = first;
      if (hadFocus) first.group.focus({ preventScroll: true });
      this.show(first);
    }
  }

  cell(cell) {
    const { x, y, w, h } = cell;
    const group = svg('g', { class: 'cell' + (w < 4 || h < 4 ? ' slim' : ''), 'data-at': cell.at, 'data-own': cell.own, 'data-kind': cell.more ? 'more' : cell.node.data.kind,
      role: 'treeitem', tabindex: '-1', 'aria-level': cell.level, 'aria-label': this.title(cell) });
    if (!cell.more && cell.node.children) group.setAttribute('aria-expanded', 'true');
    group.append(paint(svg('rect', { x, y, width: Math.max(w, 0), height: h }), cell.shade));
    const line = cell.header || h;
    if (line >= 13 && w >= 30) {
      const room = w - 8, size = bytes(cell.total);
      const label = fit(cell.label, room);
      if (label) {
        const text = svg('text', { x: x + 4, y: cell.header || h < 30 ? y + Math.min(line, 18) / 2 + 4 : y + 14, class: 'on-' + cell.shade, text: label });
        group.append(text);
        const left = room - textWidth(label) - 12;
        if (left > textWidth(size)) {
          text.textContent = label;
          group.append(svg('text', { x: x + w - 4, y: text.getAttribute('y'), 'text-anchor': 'end', class: 'on-' + cell.shade, text: size }));
        } else if (!cell.header && h >= 34 && textWidth(size) <= room) {
          group.append(svg('text', { x: x + 4, y: y + 28, class: 'on-' + cell.shade, text: size }));
        }
      }
    }
    return group;
  }

  title(cell) { return cell.label + ', ' + bytes(cell.total); }

  show(cell) {
    if (!cell || this.current === cell) return;
    this.current = cell;
    for (const rect of [this.under, this.cursor]) {
      fillIn(rect, { x: cell.x + 1, y: cell.y + 1, width: Math.max(cell.w - 2, 1), height: Math.max(cell.h - 2, 1), visibility: 'visible' }, []);
    }
    this.panel.replaceChildren(...this.describe(cell));
  }

  focus(cell) {
    if (!cell) return;
    if (this.stop) this.stop.group.setAttribute('tabindex', '-1');
    this.stop = cell;
    cell.group.setAttribute('tabindex', '0');
    cell.group.focus({ preventScroll: false });
  }

  enter(cell) {
    if (cell.more) this.to(together(cell));
    else if (cell.node === this.at) this.out();
    else this.to(cell.node);
  }
  out() { if (this.at.parent) this.to(this.at.parent); }
  to(node) {
    this.at = node;
    this.current = null;
    this.draw();
    announce('Zoomed to ' + node.data.label + ', ' + bytes(node.value) + '.');
  }

  path() {
    const chain = this.at.ancestors().reverse();
    const step = node => el('li', null, el('button', { type: 'button', text: node.data.label, 'aria-current': node === this.at ? 'location' : null,
      on: { click: () => { this.to(node); this.focus(this.cells[0]); } } }));
    const steps = chain.length > 7 ? [...chain.slice(0, 2).map(step), el('li', { text: '… ' + (chain.length - 5) + ' layers …' }), ...chain.slice(-3).map(step)] : chain.map(step);
    this.crumbs.replaceChildren(el('ol', null, steps));
    this.back.disabled = !this.at.parent;
  }

  key(event) {
    const cell = this.focused();
    if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
    const siblings = this.cells.filter(other => other.level === cell.level);
    const place = siblings.indexOf(cell);
    const above = cell === this.cells[0] ? null : this.byNode.get(cell.more ? cell.node : cell.node.parent) || this.cells[0];
    const below = other => !cell.more && other !== cell && (other.more ? other.node === cell.node : (cell.node.children || []).includes(other.node));
    const moves = {
      ArrowRight: () => this.focus(siblings[place + 1]),
      ArrowLeft: () => this.focus(siblings[place - 1]),
      ArrowUp: () => this.focus(above),
      ArrowDown: () => this.focus(this.cells.find(below)),
      Home: () => this.focus(this.cells[0]),
      Enter: () => this.enter(cell),
      ' ': () => this.enter(cell),
      Escape: () => this.out(),
      Backspace: () => this.out(),
    };
    const move = moves[event.key];
    if (move) { event.preventDefault(); move(); }
  }

  look(query) {
    this.query = query.trim().toLowerCase();
    this.hits = null;
    if (this.query) {
      const hit = this.matcher(this.query);
      this.hits = new Set(this.root.descendants().filter(node => node.data.kind !== 'group' && hit(node.data)));
      let own = 0;
      for (const node of this.hits) own += node.data.own;
      this.found.textContent = this.hits.size ? this.count(this.hits.size) + ' match, ' + bytes(own) : 'Nothing matches';
    } else {
      this.found.textContent = '';
    }
    this.mark();
  }
  mark() {
    for (const cell of this.cells || []) {
      const holds = node => node.descendants().some(each => this.hits.has(each));
      let dim = false;
      if (this.hits) dim = cell.more ? !cell.more.some(holds) : cell.node.data.kind === 'group' ? !holds(cell.node) : !this.hits.has(cell.node);
      cell.group.classList.toggle('dim', dim);
    }
  }
  toFirstMatch() {
    if (!this.hits || !this.hits.size) return;
    let largest = null;
    for (const node of this.hits) if (!largest || node.data.own > largest.data.own) largest = node;
    if (!this.byNode.has(largest)) this.to(largest.parent && !largest.children ? largest.parent : largest);
    this.focus(this.byNode.get(largest) || this.cells[0]);
  }
}
const MOST_CELLS = 1500;
let printing = false;

// Small cells that were drawn as one, as a node of their own to zoom to.
function together(cell) {
  const [first, last] = [cell.more[0], cell.more[cell.more.length - 1]];
  return Object.assign(Object.create(Object.getPrototypeOf(cell.node)), {
    data: { kind: 'group', shade: 'more', own: 0, label: cell.label + ' of ' + cell.node.data.label, note: '', children: [] },
    children: cell.more, parent: cell.node, depth: cell.node.depth + 1, height: 1 + Math.max(...cell.more.map(node => node.height)),
    value: cell.total, x0: first.x0, x1: last.x1,
  });
}

function facts(pairs) {
  return el('dl', null, pairs.filter(pair => pair && pair[1] !== null && pair[1] !== '').map(([term, text]) =>
    [el('dt', { text: term }), el('dd', null, text)]));
}
function someOf(list, most) {
  if (list.length <= most) return list.join(', ');
  return list.slice(0, most).join(', ') + ' and ' + count(list.length - most) + ' more';
}
