// How the search orders what it finds: pages for users first, evidence and sources last.
const ORDER = [
  [/^guide\/(uncertainty|regression|classification|priors|convergence)$/, 2.5],
  [/^guide\/(features|limits|comparison)$/, 1.5],
  [/^(start|guide|methods|performance)\b/, 2],
  [/^(developer|about)\//, 0.4],
  [/^api\/c$/, 0.4],
];
var Scorer = {
  score: ([page, , , , score]) => score * (ORDER.find(([where]) => where.test(page))?.[1] ?? 1),
  // The rest is as Sphinx has it.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
