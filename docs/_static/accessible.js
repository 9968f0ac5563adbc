// What axe-core finds in the theme's pages: parts that scroll and no key reaches, headings without a level, landmarks without
// a name, a page of search without a title, and header cells without text.
document.addEventListener("DOMContentLoaded", () => {
  const each = (selector, change) => document.querySelectorAll(selector).forEach(change);
  each("pre, .table-wrapper", (part) => (part.tabIndex = 0));
  each("[role=heading]:not([aria-level])", (heading) => heading.setAttribute("aria-level", "2"));
  each("aside.sidebar-drawer", (aside) => aside.setAttribute("aria-label", "Pages"));
  each("aside.toc-drawer", (aside) => aside.setAttribute("aria-label", "On this page"));
  each("#search-results", (results) => {
    const title = document.createElement("h1");
    title.textContent = "Search";
    results.before(title);
  });
  each("thead th", (header) => header.textContent.trim() || header.replaceWith(document.createElement("td")));
});
