// A small server that plays a Hugging Face hub with the repository u/tiny-GGUF. A test holds and releases the download of the
// chosen file.

import { createHash } from "node:crypto";
import { createServer } from "node:http";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";
// Files that are only listed: their names and sizes.
const LISTED = [["tiny-Q8_0.gguf", 9e11], ["tiny-Q1_0.gguf", 601e6]];

/** Starts the hub: `{url, requests, hold, release, stop}`. `content`: that of tiny-F32.gguf. */
export async function startHub(content) {
  const sha256 = createHash("sha256").update(content).digest("hex");
  const requests = [];
  let held = null;
  const file = (rfilename, size, digest) => ({ rfilename, size, lfs: { sha256: digest, size } });
  const siblings = [file("tiny-F32.gguf", content.length, sha256), ...LISTED.map(([name, size]) => file(name, size, "1".repeat(64)))];
  const answer = { sha: COMMIT, gated: false, cardData: { license: "apache-2.0" }, siblings };
  const send = async (request, response) => {
    const range = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? "");
    if (range) {
      const [first, last] = [Number(range[1]), Math.min(Number(range[2]), content.length - 1)];
      response.writeHead(206, { "content-range": `bytes ${first}-${last}/${content.length}`, "content-length": last - first + 1 });
      return response.end(content.subarray(first, last + 1));
    }
    response.writeHead(200, { "content-length": content.length });
    const holding = held;
    if (!holding) return response.end(content);
    // Half of the file, in several pieces, then nothing until the test releases it.
    for (let at = 0; at < 4; at++) {
      response.write(content.subarray((content.length * at) / 8, (content.length * (at + 1)) / 8));
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    await holding.promise;
    return response.end(content.subarray(content.length / 2));
  };
  const server = createServer((request, response) => {
    requests.push(request.url);
    if (request.url.startsWith("/api/models/u/tiny-GGUF/revision/main")) {
      response.writeHead(200, { "content-type": "application/json" });
      return response.end(JSON.stringify(answer));
    }
    if (request.url === `/u/tiny-GGUF/resolve/${COMMIT}/tiny-F32.gguf`) return send(request, response);
    response.writeHead(404);
    return response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const release = () => {
    held?.resolve();
    held = null;
  };
  const hold = () => {
    held = {};
    held.promise = new Promise((resolve) => (held.resolve = resolve));
  };
  const stop = () => {
    release();
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, requests, hold, release, stop };
}
