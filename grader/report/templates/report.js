"use strict";
{
  const table = document.getElementById("class");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const sections = Array.from(document.querySelectorAll(".student"));
  const sectionOf = new Map(rows.map((row, k) => [row, sections[k]]));

  // Sorting: each heading becomes a button. The first click sorts numbers downwards, names upwards.
  const valueOf = (cell, text) => {
    if (text) return cell.textContent.trim().toLocaleLowerCase();
    const value = parseFloat(cell.dataset.v ?? cell.textContent);
    return Number.isNaN(value) ? -1 : value;
  };
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    const text = "text" in heading.dataset;
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const up = before ? before === "descending" : text;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = rows.map((row, place) => [valueOf(row.cells[k], text), place, row]);
      const compare = text ? (a, b) => a.localeCompare(b) : (a, b) => a - b;
      keyed.sort((a, b) => (up ? compare(a[0], b[0]) : compare(b[0], a[0])) || a[1] - b[1]);
      body.append(...keyed.map((entry) => entry[2]));
    });
  });

  // Filtering: hides rows of the table and the sections of the same students.
  const find = document.getElementById("find");
  const show = document.getElementById("show");
  const shown = document.getElementById("shown");
  const texts = new Map(rows.map((row) => [row, row.cells[0].textContent.toLocaleLowerCase()]));
  const filter = () => {
    const words = find.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const state = row.dataset.state.split(" ");
      const fits = (!show.value || state.includes(show.value)) && words.every((word) => texts.get(row).includes(word));
      row.hidden = !fits;
      const section = sectionOf.get(row);
      if (section) section.hidden = !fits;
      count += fits;
    }
    shown.textContent = count === rows.length ? "" : `${count} of ${rows.length}`;
  };
  find.addEventListener("input", filter);
  show.addEventListener("change", filter);
  document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
  filter();

  // A link to a student opens the student's section, even if the filter hides it.
  const follow = () => {
    const target = document.getElementById(location.hash.slice(1));
    const section = target && target.closest(".student");
    if (!section) return;
    section.hidden = false;
    section.open = true;
    section.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) follow();
  });
  follow();

  for (const [id, open] of [["open", true], ["close", false]]) {
    document.getElementById(id).addEventListener("click", () => {
      for (const section of sections) section.open = open && !section.hidden;
    });
  }
  document.getElementById("filter").hidden = false;
  document.getElementById("tools").hidden = false;
}
