"use strict";
const data = JSON.parse(document.getElementById("charts").textContent);
// What is not seen first is drawn once the page is there.
const whenIdle = (draw) => (window.requestIdleCallback ? requestIdleCallback(() => draw(), { timeout: 500 }) : setTimeout(draw, 50));

(() => {
  // Where the library that draws could not be had, each chart says so, and what speaks of drawings is gone.
  if (window.Plotly) return;
  const source = document.querySelector("script[src]").getAttribute("src");
  const remedy = source.includes("/") ? "connect to the network and load the page again" : "put that file beside this page";
  for (const chart of document.querySelectorAll(".chart")) {
    const said = document.createElement("p");
    said.className = "second undrawn";
    said.textContent = `This chart is drawn by ${source}, which could not be loaded: ${remedy}. The tables hold every figure.`;
    chart.replaceWith(said);
  }
  for (const each of document.querySelectorAll(".drawn")) each.remove();
})();
