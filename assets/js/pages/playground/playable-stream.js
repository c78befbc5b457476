// Plays audio while it arrives, in browsers that can.

const RETRY_MS = 1000;

/**
 * A source for an audio element that plays what has been pushed: `{url, push, end}`. Returns null if the browser cannot play a
 * part of this type.
 */
export function playableStream(type) {
  if (!globalThis.MediaSource?.isTypeSupported(type)) return null;
  const media = new MediaSource();
  const waiting = [];
  let [buffer, ended] = [null, false];
  // A buffer takes one chunk at a time.
  const next = () => {
    if (!buffer || buffer.updating || media.readyState !== "open") return;
    if (!waiting.length) return void (ended && media.endOfStream());
    try {
      buffer.appendBuffer(waiting[0]);
      waiting.shift();
    } catch {
      // The buffer is full. The browser frees what has been played.
      setTimeout(next, RETRY_MS);
    }
  };
  media.addEventListener("sourceopen", () => {
    buffer = media.addSourceBuffer(type);
    buffer.addEventListener("updateend", next);
    next();
  }, { once: true });
  const push = (chunk) => {
    waiting.push(chunk);
    next();
  };
  const end = () => {
    ended = true;
    next();
  };
  return { url: URL.createObjectURL(media), push, end };
}
