#!/usr/bin/env bash
# Runs the image with a read-only root, as its own user, with loopback as its only network.
# Needs root, skopeo, umoci and runc. Usage: oci.sh IMAGE.oci.tar MODEL-FOLDER
set -euo pipefail
image=$1 model=$2
name=outpost-test-$$
work=$(mktemp -d)
cleanup() {
  runc delete --force "$name" 2> /dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $1"; cat "$work/log"; exit 1; }

echo '$ skopeo inspect --config'
skopeo inspect --config "oci-archive:$image" > "$work/config"
grep --quiet '"User": "65532:65532"' "$work/config" || fail 'the user is root'
skopeo inspect "oci-archive:$image" | grep -E '"(Architecture|Os|Name)"|sha256' || true
skopeo copy --quiet "docker-archive:$image" "dir:$work/docker"
echo 'skopeo reads it as an archive of docker, too'

version=$(skopeo inspect --format '{{index .Labels "org.opencontainers.image.version"}}' "oci-archive:$image")
skopeo copy --quiet "oci-archive:$image" "oci:$work/layout:$version"
umoci unpack --image "$work/layout:$version" "$work/bundle"
du --summarize --human-readable "$work/bundle/rootfs" | cut --fields=1

install -d --owner=65532 --group=65532 --mode=0700 "$work/data" "$work/models"
cp --recursive "$model" "$work/models"
chown --recursive 65532:65532 "$work/models"
python3 - "$work" << 'END'
import json, sys
work = sys.argv[1]
path = f"{work}/bundle/config.json"
config = json.load(open(path))
config["root"]["readonly"] = True
config["process"]["terminal"] = False
config["process"]["noNewPrivileges"] = True
config["process"]["capabilities"] = {}
config["mounts"] = [m for m in config["mounts"] if m["destination"] not in ("/data", "/models", "/etc/resolv.conf")]
for name in ("data", "models"):
    config["mounts"].append({"destination": f"/{name}", "type": "bind", "source": f"{work}/{name}", "options": ["rbind", "rw"]})
# Control groups are not what is tested, and a machine that builds may not have them.
config["mounts"] = [m for m in config["mounts"] if m["type"] != "cgroup"]
json.dump(config, open(path, "w"))
END
(cd "$work/bundle" && runc run --detach --pid-file "$work/pid" "$name") > "$work/log" 2>&1 < /dev/null || fail 'runc cannot start it'
pid=$(cat "$work/pid")
inside() { nsenter --target "$pid" --net curl --silent --show-error --fail "$@"; }
tries=300
until inside --output /dev/null http://127.0.0.1:8080/readyz 2> /dev/null; do
  tries=$((tries - 1))
  if [ "$tries" -le 0 ]; then fail 'the server is not ready'; fi
  sleep 0.1
done
echo "ready as user $(stat --format %u "/proc/$pid"); capabilities $(sed -n 's/CapEff:\t//p' "/proc/$pid/status")"
if nsenter --target "$pid" --mount=/proc/$pid/ns/mnt /usr/bin/outpost --version > "$work/version" 2>&1; then cat "$work/version"; fi
grep --quiet ' / ro' "/proc/$pid/mountinfo" || fail 'the root can be written'
echo 'the root is read-only'
if runc exec "$name" /usr/bin/outpost health > /dev/null 2>&1; then
  echo 'health check: healthy'
else
  grep --quiet Healthcheck "$work/config" && fail 'the health check fails' || echo 'this program has no health check'
fi
answer=$(inside http://127.0.0.1:8080/openai/v1/chat/completions --header "Authorization: Bearer $(cat "$work/data/admin.key")" \
  --header 'Content-Type: application/json' \
  --data '{"model": "smollm2-135m-instruct", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}') ||
  fail 'no answer'
grep --only-matching '"content":"[^"]*"' <<< "$answer" || fail "no content: $answer"
runc kill "$name" TERM
for _ in $(seq 100); do [ -e "/proc/$pid" ] && [ "$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$pid/status")" != Z ] || break; sleep 0.1; done
[ "$(runc state "$name" | sed -n 's/.*"status": "\(.*\)".*/\1/p')" = stopped ] || fail 'SIGTERM does not stop it'
echo 'stopped by SIGTERM'
echo PASSED
