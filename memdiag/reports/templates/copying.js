(() => {
  // What a button names goes to the clipboard; where a browser forbids that, it is selected.
  const button = document.getElementById("copy");
  if (!button) return;
  const source = document.getElementById(button.dataset.of);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
  });
})();
