// Milliseconds since 1970 at which the browser first painted text, the overview, and NODES nodes.
window.painted = (() => {
  const first = new Promise((found) => new PerformanceObserver((list) => {
    const paint = list.getEntriesByName("first-contentful-paint")[0];
    if (paint) found(performance.timeOrigin + paint.startTime);
  }).observe({ type: "paint", buffered: true }));
  const elements = (selector, count) => new Promise((found) => new MutationObserver(() => {
    if (document.querySelectorAll(selector).length < count) return;
    requestAnimationFrame(() => setTimeout(() => found(performance.timeOrigin + performance.now())));
  }).observe(document, { childList: true, subtree: true }));
  return { first, overview: elements("#needs-you", 1), allNodes: elements(".square", Number("NODES")) };
})();
