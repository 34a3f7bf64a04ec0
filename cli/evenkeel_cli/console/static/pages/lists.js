// Filters and pages of a list. The address holds both, so that a link shows the same list.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { href, plain } from "../format.js";

export function listPath(path, filters, names, pageSize = 50) {
  const query = new URLSearchParams({ pageSize });
  for (const name of names) if (filters[name]) query.set(name, filters[name]);
  if (filters.page) query.set("nextPageToken", filters.page);
  return `${path}?${query}`;
}

export function Filter({ page, filters, name, label, options }) {
  const go = (event) => {
    location.hash = href(page, { ...filters, page: "", [name]: event.target.value });
  };
  return html`<label class="filter">${label}
    <select value=${filters[name] || ""} onChange=${go}><option value="">all</option>
    ${options.map((option) => html`<option value=${option} selected=${filters[name] === option}>${plain(option)}</option>`)}
    ${filters[name] && !options.includes(filters[name]) ? html`<option value=${filters[name]} selected>${filters[name]}</option>` : null}</select></label>`;
}

// Why a list has no rows: only a list without filters shows that nothing is recorded.
export function emptyText(live, { sort, ...filters }, unfiltered, filtered) {
  if (live.data?.nextPageToken) return "None on this page.";
  return Object.values(filters).some(Boolean) ? filtered : unfiltered;
}

export function Pages({ live, page, filters }) {
  const next = live.data?.nextPageToken;
  if (!next && !filters.page) return null;
  return html`<nav class="pages" aria-label="Pages">
    ${filters.page ? html`<a href=${href(page, { ...filters, page: "" })}>first page</a>` : null}
    ${next ? html`<a rel="next" href=${href(page, { ...filters, page: next })}>next page</a>` : null}</nav>`;
}
