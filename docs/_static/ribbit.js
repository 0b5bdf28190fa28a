// Names for screen readers, for elements that the theme and the gallery leave without one.
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".search-button-field")) {
    if (button.innerText.trim()) button.removeAttribute("aria-label"); // its text says more
  }
  for (const card of document.querySelectorAll(".sphx-glr-thumbcontainer")) {
    const title = card.querySelector(".sphx-glr-thumbnail-title")?.textContent;
    card.querySelector("a")?.setAttribute("aria-label", title ?? "example");
  }
  for (const summary of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const title = summary.closest("li")?.querySelector("a")?.textContent;
    summary.setAttribute("aria-label", `pages of ${title ?? "this one"}`);
  }
});
