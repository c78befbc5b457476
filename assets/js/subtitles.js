// Segments of a transcript as subtitles: SubRip and WebVTT, as the transcription API writes them.

/** `00:00:00.000` */
function time(seconds, point) {
  const millis = Math.round(seconds * 1000);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${two(millis / 3_600_000)}:${two((millis / 60_000) % 60)}:${two((millis / 1000) % 60)}${point}${String(millis % 1000).padStart(3, "0")}`;
}

/** An arrow in a text would look like a line of times, and an empty line like the end. */
const cue = ({ start, end, text }, point) => `${time(start, point)} --> ${time(end, point)}\n${text.trim().replaceAll("-->", "->").replace(/\n\s*\n/g, "\n")}`;

export const srt = (segments) => segments.map((segment, index) => `${index + 1}\n${cue(segment, ",")}\n\n`).join("");
export const vtt = (segments) => `WEBVTT\n\n${segments.map((segment) => `${cue(segment, ".")}\n\n`).join("")}`;
