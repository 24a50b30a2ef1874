// Shows the rows that hold what was typed; with nothing typed, the first few. Fetches nothing.
const rows = [...document.querySelectorAll("#pairs > li")];
const field = document.getElementById("find");
const found = document.getElementById("found");
const shown = Number(field.dataset.shown);
function search() {
  const wanted = field.value.trim().toLowerCase();
  let hits = 0;
  rows.forEach((row, place) => {
    const isHit = wanted ? row.textContent.toLowerCase().includes(wanted) : place < shown;
    row.hidden = !isHit;
    hits += isHit;
  });
  found.textContent = wanted ? `${hits} of ${rows.length} rows` : `${hits} rows shown`;
}
field.parentElement.hidden = false;
field.addEventListener("input", search);
search();
