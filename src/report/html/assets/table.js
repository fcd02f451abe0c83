// A table of any length: sorted by a click on a column, filtered by a text, a page at a time.

class Table {
  // options: id, caption, rows, one (word for a row), columns, size, sort (column), matcher(query) -> row -> bool,
  // rest (count and bytes of rows that are not listed; the bytes go below the column of `sort`)
  // column: label, get(row) -> value to sort by, cell(row) -> text or node, bytes, kind (class), fixed (no sorting)
  constructor(options) {
    Object.assign(this, { size: 25, sort: null, matcher: null }, options);
    this.page = 0;
    this.descending = true;
    this.query = '';
    this.status = el('output');
    this.before = el('button', { type: 'button', text: 'Previous', on: { click: () => this.turn(-1) } });
    this.after = el('button', { type: 'button', text: 'Next', on: { click: () => this.turn(1) } });
    this.heads = this.columns.map((column, at) => el('th', { scope: 'col', class: this.kind(column), 'aria-sort': column.fixed ? null : 'none' },
      column.fixed ? column.label : el('button', { type: 'button', text: column.label, on: { click: () => this.by(at) } })));
    this.body = el('tbody');
    this.element = el('div', { class: 'table', id: this.id });
    if (this.matcher) {
      const id = this.id + '-filter';
      this.filter = el('input', { type: 'search', id, autocomplete: 'off', spellcheck: 'false', placeholder: this.placeholder || '',
        on: { input: () => { this.query = this.filter.value.trim().toLowerCase(); this.page = 0; this.choose(); } } });
      this.element.append(el('div', { class: 'tools' }, el('label', { for: id }, 'Filter', this.filter)));
    }
    this.pager = el('div', { class: 'pager' }, this.before, this.after, this.status);
    this.element.append(scroller(this.caption, el('table', null, el('caption', { text: this.caption }), el('thead', null, el('tr', null, this.heads)), this.body, this.foot())), this.pager);
    this.choose();
    Table.all.push(this);
  }

  // The row that sums what is not listed.
  foot() {
    if (!this.rest || !this.rest.count) return null;
    const at = this.sort;
    return el('tfoot', null, el('tr', { 'data-rest': this.rest.count },
      el('td', { colspan: at, text: '… and ' + many(this.rest.count, 'smaller ' + this.one) + ', not listed' }),
      el('td', { class: 'num', title: count(this.rest.bytes) + ' bytes', 'data-value': this.rest.bytes, text: bytes(this.rest.bytes) }),
      at + 1 < this.columns.length ? el('td', { colspan: this.columns.length - at - 1 }) : null));
  }

  kind(column) { return column.bytes ? 'num' : column.kind || null; }

  by(at) {
    // Numbers start with the largest, texts with the first.
    if (this.sort === at) this.descending = !this.descending;
    else { this.sort = at; this.descending = typeof this.columns[at].get(this.rows[0] || {}) !== 'string'; }
    this.page = 0;
    this.choose();
  }

  turn(pages) { this.page += pages; this.show(); }

  choose() {
    let rows = this.rows;
    if (this.query) { const hit = this.matcher(this.query); rows = rows.filter(hit); }
    if (this.sort !== null) {
      const { get } = this.columns[this.sort];
      const sign = this.descending ? -1 : 1;
      // What is unknown stays at the end.
      const keyed = rows.map(row => [get(row), row]);
      keyed.sort(([a], [b]) => {
        const none = v => v === null || v === undefined || v === '';
        if (none(a) || none(b)) return none(a) - none(b);
        return sign * (typeof a === 'string' ? (a < b ? -1 : a > b ? 1 : 0) : a - b);
      });
      rows = keyed.map(([, row]) => row);
    }
    this.chosen = rows;
    this.heads.forEach((head, at) => { if (!this.columns[at].fixed) head.setAttribute('aria-sort', at !== this.sort ? 'none' : this.descending ? 'descending' : 'ascending'); });
    this.show();
  }

  show() {
    const size = printing ? Math.max(this.size, 100) : this.size;
    const pages = Math.max(1, Math.ceil(this.chosen.length / size));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const from = printing ? 0 : this.page * size;
    const rows = this.chosen.slice(from, from + size);
    const cell = (column, row) => {
      const value = column.bytes ? column.get(row) === null ? 'unknown' : bytes(column.get(row)) : column.cell ? column.cell(row) : typeof column.get(row) === 'number' ? count(column.get(row)) : safe(column.get(row) ?? '–');
      return el('td', { class: this.kind(column), title: column.bytes && column.get(row) !== null ? count(column.get(row)) + ' bytes' : null, 'data-value': column.bytes ? column.get(row) : null }, value);
    };
    this.body.replaceChildren(...rows.map(row => el('tr', null, this.columns.map(column => cell(column, row)))));
    if (!rows.length) this.body.append(el('tr', null, el('td', { colspan: this.columns.length, class: 'note', text: this.query ? 'Nothing matches.' : 'None.' })));
    this.status.textContent = rows.length ? count(from + 1) + '–' + count(from + rows.length) + ' of ' + many(this.chosen.length, this.one)
      + (this.chosen.length === this.rows.length ? '' : ', filtered from ' + count(this.rows.length)) : '';
    this.pager.hidden = pages === 1 && !this.query;
    this.before.hidden = this.after.hidden = pages === 1;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page === pages - 1;
  }
}
Table.all = [];
