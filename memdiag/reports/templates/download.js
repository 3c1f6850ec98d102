(() => {
  // The record inside the page, as the file that it was made from.
  const download = document.getElementById("download");
  if (!download) return;
  const element = document.querySelector("script[data-file]");
  download.addEventListener("click", async () => {
    let record = new Blob([element.textContent], { type: "application/json" });
    if (element.dataset.encoding === "base64") {
      const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      record = await new Response(stream).blob();
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(record);
    link.download = element.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
})();
