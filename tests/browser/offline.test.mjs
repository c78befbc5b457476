// Runs every page in a network namespace without any connection.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { networkInterfaces } from "node:os";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { launchBrowser, startServer, openPage } from "./harness.mjs";
import { seedData, visitPages } from "./pages.mjs";

// The loopback interface of a new network namespace is down. This brings it up: SIOCSIFFLAGS, IFF_UP.
const LOOPBACK_UP = "import fcntl, os, socket, struct, sys\nfcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 1))\nos.execvp(sys.argv[1], sys.argv[1:])";
const UNSHARE = ["--map-root-user", "--net", "python3", "-c", LOOPBACK_UP];
const INSIDE = "OUTPOST_TEST_OFFLINE";

const unavailable = spawnSync("unshare", [...UNSHARE, "true"]).status !== 0 && "this machine does not allow new network namespaces";

test("every page works without a network", { skip: !process.env[INSIDE] && unavailable }, async () => {
  if (!process.env[INSIDE]) {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const child = spawnSync("unshare", [...UNSHARE, process.execPath, "--test", fileURLToPath(import.meta.url)], { env: { ...env, [INSIDE]: "1" }, encoding: "utf8", timeout: 300_000 });
    assert.equal(child.status, 0, child.stdout + child.stderr);
    return;
  }
  assert.deepEqual(Object.keys(networkInterfaces()), ["lo"]);
  await assert.rejects(fetch("http://192.0.2.1/"), "the network is reachable");
  const server = await startServer();
  const browser = await launchBrowser();
  try {
    const ids = await seedData(server);
    const { page, problems } = await openPage(browser, server.url);
    await visitPages(page, server, ids, () => {});
    assert.deepEqual(problems, []);
  } finally {
    await browser.close();
    await server.stop();
  }
});
