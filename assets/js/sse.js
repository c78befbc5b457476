// Server-sent events from a fetch body. EventSource cannot POST and cannot send an Authorization header.

/** Yields `{name, data}` for each event, without comments. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // The pieces of a line that has not ended, and the lines of an event that has not: a large event arrives in many pieces.
  let pieces = [];
  let lines = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const [first, ...others] = value.split("\n");
      pieces.push(first);
      for (const piece of others) {
        const line = pieces.join("");
        pieces = [piece];
        if (line) lines.push(line);
        else {
          const event = parse(lines);
          lines = [];
          if (event) yield event;
        }
      }
    }
  } finally {
    // Closes the connection, so that the server stops when the caller does.
    reader.cancel().catch(() => {});
  }
}

function parse(lines) {
  let name = "message";
  const data = [];
  for (const line of lines) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
