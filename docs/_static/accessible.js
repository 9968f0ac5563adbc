// What axe-core finds in the theme's pages: parts that scroll and no key reaches, headings without a level, landmarks without
// a name, and header cells without text.
document.addEventListener("DOMContentLoaded", () => {
  const each = (selector, change) => document.querySelectorAll(selector).forEach(change);
  each("pre, .table-wrapper", (part) => (part.tabIndex = 0));
  each("[role=heading]:not([aria-level])", (heading) => heading.setAttribute("aria-level", "2"));
  each("aside.sidebar-drawer", (aside) => aside.setAttribute("aria-label", "Pages"));
  each("aside.toc-drawer", (aside) => aside.setAttribute("aria-label", "On this page"));
  each("thead th", (header) => header.textContent.trim() || header.replaceWith(document.createElement("td")));
});
