// What the theme leaves out for the keyboard and for screen readers.

// A part that scrolls sideways can be reached, and is then scrolled by the arrow keys.
function reachScrollable() {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .doc-contents .highlight")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // The copy button of each block of code is in a landmark of its own, all without a name.
  document.querySelectorAll(".md-code__nav").forEach((nav) => nav.setAttribute("role", "none"));
  // The navigation's inner lists are landmarks again, and have names that others have, too.
  for (const nav of document.querySelectorAll('.md-nav[aria-labelledby^="__nav"]')) {
    // Where a list has a page of its own, the label that the theme names is empty.
    const name = nav.querySelector(":scope > .md-nav__title")?.textContent.trim();
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `Pages in ${name}`);
  }
  for (const header of document.querySelectorAll(".md-typeset th")) {
    if (header.textContent.trim()) continue;
    const cell = document.createElement("td");
    cell.append(...header.childNodes);
    header.replaceWith(cell);
  }
  reachScrollable();
});
addEventListener("resize", reachScrollable);
