// Each picture of the story has a button for full screen; there the arrow keys lead to the next and the last picture.
(() => {
  if (!document.querySelector(".story") || !document.documentElement.requestFullscreen) return;
  const slides = [...document.querySelectorAll(".bd-article > section > section")];

  for (const slide of slides) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "full-screen", textContent: "full screen" });
    button.addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : slide.requestFullscreen()));
    slide.prepend(button);
  }

  addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    const next = slides[slides.indexOf(document.fullscreenElement) + step];
    if (!document.fullscreenElement || !step || !next) return;
    event.preventDefault();
    next.requestFullscreen().then(() => next.querySelector("summary")?.focus());
  });

  addEventListener("fullscreenchange", () => {
    for (const slide of slides)
      slide.querySelector(".full-screen").textContent = slide === document.fullscreenElement ? "close" : "full screen";
  });
})();
