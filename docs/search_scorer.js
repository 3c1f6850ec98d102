/* The order of search results: pages that answer questions first, records of the project last.
   Sphinx sorts pages with the same score, which is that of one word in the text, by title. */
"use strict";

var Scorer = {
  score: ([name, , , , score]) => {
    if (/^docs\/(tasks\/|start$)/.test(name)) return score + 6;
    if (/^(CHANGELOG|reports\/|benchmarks\/|docs\/(architecture|new_release|reproductions|example\/|reference\/record))/.test(name)) return score - 6;
    return score;
  },

  // The other values are those of Sphinx, which needs all of them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
