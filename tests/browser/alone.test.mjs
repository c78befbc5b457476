// With the network cut: a machine that has nothing but itself. Every page works there.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { networkInterfaces } from "node:os";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { browse, serve, visit } from "./harness.mjs";
import { seed, tour } from "./places.mjs";

// A network namespace of its own begins with a loopback that is down: SIOCSIFFLAGS, IFF_UP.
const UP = "import fcntl, os, socket, struct, sys\nfcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 1))\nos.execvp(sys.argv[1], sys.argv[1:])";
const CUT = ["--map-root-user", "--net", "python3", "-c", UP];
const INSIDE = "OUTPOST_TEST_ALONE";

const refused = spawnSync("unshare", [...CUT, "true"]).status !== 0 && "this machine lets nobody make a network namespace";

test("every page works without a network", { skip: !process.env[INSIDE] && refused }, async () => {
  if (!process.env[INSIDE]) {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const child = spawnSync("unshare", [...CUT, process.execPath, "--test", fileURLToPath(import.meta.url)], { env: { ...env, [INSIDE]: "1" }, encoding: "utf8", timeout: 300_000 });
    assert.equal(child.status, 0, child.stdout + child.stderr);
    return;
  }
  assert.deepEqual(Object.keys(networkInterfaces()), ["lo"]);
  await assert.rejects(fetch("http://192.0.2.1/"), "there is a way out");
  const server = await serve();
  const browser = await browse();
  try {
    const ids = await seed(server);
    const { page, wrong } = await visit(browser, server.url);
    await tour(page, server, ids, () => {});
    assert.deepEqual(wrong, []);
  } finally {
    await browser.close();
    await server.stop();
  }
});
