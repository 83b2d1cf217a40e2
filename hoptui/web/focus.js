// Keys go to the terminal at once, without a click on it first.
new MutationObserver((_, observer) => {
  const input = document.querySelector(".xterm-helper-textarea");
  if (input) {
    observer.disconnect();
    input.focus();
  }
}).observe(document.documentElement, { childList: true, subtree: true });
