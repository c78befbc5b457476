// A transcript whose words light up while its audio is played.

import { html, useEffect, useMemo, useRef, useState } from "../../html.js";
import { clock } from "../../format.js";
import { t } from "../../strings.js";

// A word stays lit for this long if no other word follows it, in seconds.
const AFTERGLOW = 0.5;

/** The index of the word that is spoken at a time, or -1. `words` are in order. */
export function wordAt(words, time) {
  let [low, high] = [0, words.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (words[middle].start <= time) low = middle + 1;
    else high = middle;
  }
  const index = low - 1;
  return index >= 0 && time < words[index].end + AFTERGLOW ? index : -1;
}

/** The text of a segment in pieces: `[text, index of the word, or -1]`. Words have no spaces; their segment's text has. */
export function piecesOf({ text, words = [] }) {
  const pieces = [];
  let from = 0;
  words.forEach(({ word }, index) => {
    const at = text.indexOf(word, from);
    if (at < 0 || !word) return;
    if (at > from) pieces.push([text.slice(from, at), -1]);
    pieces.push([word, index]);
    from = at + word.length;
  });
  if (from < text.length) pieces.push([text.slice(from), -1]);
  return pieces;
}

/** The index of the word that `audio`, an element, plays now. */
function useSpokenWord(audio, words) {
  const [spoken, setSpoken] = useState(-1);
  useEffect(() => {
    if (!audio) return undefined;
    let frame = 0;
    const update = () => {
      cancelAnimationFrame(frame);
      const started = !audio.paused || audio.currentTime > 0;
      setSpoken(started ? wordAt(words, audio.currentTime) : -1);
      // The event `timeupdate` is too rare for short words.
      if (!audio.paused) frame = requestAnimationFrame(update);
    };
    const events = ["play", "timeupdate", "seeked"];
    events.forEach((name) => audio.addEventListener(name, update));
    return () => {
      cancelAnimationFrame(frame);
      events.forEach((name) => audio.removeEventListener(name, update));
    };
  }, [audio, words]);
  return spoken;
}

/** `segments`: `{start, end, text, words}`. `audio`: the element that plays them, or null. */
export function TimedTranscript({ segments, audio }) {
  const words = useMemo(() => segments.flatMap((segment) => segment.words ?? []), [segments]);
  const spoken = useSpokenWord(audio, words);
  const list = useRef();
  useEffect(() => {
    const [word, box] = [list.current.querySelector(".spoken"), list.current];
    if (!word) return;
    const [top, bottom] = [word.offsetTop, word.offsetTop + word.offsetHeight];
    if (top < box.scrollTop || bottom > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 3;
  }, [spoken]);
  const jump = (time) => {
    if (!audio) return;
    audio.currentTime = time;
    audio.play().catch(() => {});
  };
  let first = 0;
  return html`<ol class="timed-transcript" ref=${list}>${segments.map((segment, index) => {
    const at = spoken - first;
    const count = segment.words?.length ?? 0;
    first += count;
    return html`<${Segment} key=${index} segment=${segment} spoken=${at >= 0 && at < count ? at : -1} jump=${jump} />`;
  })}</ol>`;
}

/** Only segments in which another word is spoken are rendered again. */
function Segment({ segment, spoken, jump }) {
  const text = useMemo(() => piecesOf(segment).map(([piece, index], key) => {
    if (index < 0) return piece;
    // A pointer can jump to a word; the keyboard has the times of the segments.
    return html`<span key=${key} class=${index === spoken ? "word spoken" : "word"} onClick=${() => jump(segment.words[index].start)}>${piece}</span>`;
  }), [segment, spoken]);
  return html`<li>
    <button type="button" class="text-button" onClick=${() => jump(segment.start)}><span class="visually-hidden">${t.transcription.playFrom} </span>${clock(segment.start)}</button>
    <p>${text}</p>
  </li>`;
}
