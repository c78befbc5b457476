# shellcheck shell=bash
# Functions for tests of packages. Runs inside the container, which has no network.

url=http://127.0.0.1:8080
data=/var/lib/outpost/data

heading() { printf '\n== %s\n' "$1"; }
wrong() { echo "FAILED: $1"; journalctl --unit outpost --no-pager --lines 20; exit 1; }

# Prints a command, and what it prints. Ends the test if the command fails.
run() { printf '$ %s\n' "$*"; "$@" 2>&1 || wrong "$1 ended with $?"; }

# Paths of the system, without what changes by itself, and without the administrator's own files of this test.
paths() {
  find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /dev -o -path /test -o -path /var/log -o -path /var/cache \
    -o -path /var/tmp -o -path /var/lib/systemd -o -path /var/lib/dpkg \) -prune -o -print | LC_ALL=C sort
}

# Ends the test if paths differ from those of the file $1.
nothing_left() {
  paths | diff "$1" - | grep --invert-match '^[0-9,acd]*$' > /tmp/left || true
  [ ! -s /tmp/left ] || { cat /tmp/left; wrong 'files are left'; }
  echo "$(wc -l < "$1") paths, as before the installation"
}

# Repeats a command until it succeeds, for at most a minute.
await() {
  local tries=600
  until "$@" > /dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || wrong "for a minute: $*"
    sleep 0.1
  done
}
wait_ready() { await curl --silent --fail "$url/readyz"; }

api() {
  local path=$1
  shift
  curl --silent --show-error --fail "$url$path" --header "Authorization: Bearer $(cat $data/admin.key)" --header 'Content-Type: application/json' "$@"
}

chat() {
  echo '$ curl …/openai/v1/chat/completions'
  local started answer
  started=$(date +%s%N)
  answer=$(api /openai/v1/chat/completions --data \
    '{"model": "smollm2-135m-instruct", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}') ||
    wrong "no answer: $answer"
  grep --only-matching '"content":"[^"]*"' <<< "$answer" || wrong "no content: $answer"
  echo "after $((($(date +%s%N) - started) / 1000000)) ms"
}

# Copies the model into the folder of the service, whose user owns it. The server finds it within a second.
add_model() {
  cp --recursive /test/models /var/lib/outpost/
  chown --recursive outpost:outpost /var/lib/outpost/models
  await lists_model
}
lists_model() { grep --quiet smollm2-135m-instruct <<< "$(api /v1/models)"; }

# The exposure that systemd-analyze measures must be at most 2.0.
exposure() {
  # In Debian 11, systemd-analyze takes no threshold, so the line is read.
  local line value
  line=$(systemd-analyze security outpost.service --no-pager | grep 'exposure level')
  echo "$line"
  value=$(grep --only-matching '[0-9]\+\.[0-9]' <<< "$line" | tr --delete .)
  [ "$((10#$value))" -le 20 ] || wrong 'the exposure is above 2.0'
}

# The admin key and requests must not be in the journal.
no_secrets() { if grep --quiet 'opk_' <<< "$(journalctl --no-pager)"; then wrong 'the journal has a key'; else echo 'no key in the journal'; fi; }

# Time from the start of the service until the first chat is answered, with all file caches as they are.
cold_start() {
  systemctl stop outpost
  local started
  started=$(date +%s%N)
  systemctl start outpost
  wait_ready
  echo "ready after $((($(date +%s%N) - started) / 1000000)) ms"
  chat
}

# While the service restarts, no request on a new connection fails: connections wait in the socket. Needs the socket unit.
restart_under_load() {
  local client count failed
  if ! systemctl --quiet is-active outpost.socket; then echo 'this program has no socket unit'; return; fi
  touch /tmp/running
  for client in 1 2 3 4; do
    (
      while [ -e /tmp/running ]; do
        curl --silent --output /dev/null --max-time 30 --write-out '%{http_code}\n' "$url/healthz" || echo "curl: $?"
      done > "/tmp/client.$client"
    ) &
  done
  for count in 1 2 3 4 5 6 7 8 9 10; do
    # systemd refuses a sixth start within ten seconds.
    systemctl reset-failed outpost
    systemctl restart outpost || wrong "restart $count"
    wait_ready
  done
  rm /tmp/running
  wait
  echo '10 restarts, 4 clients; status codes:'
  sort /tmp/client.* | uniq --count
  failed=$(cat /tmp/client.* | grep --count --invert-match '^200$' || true)
  [ "$failed" = 0 ] || wrong "$failed requests failed"
  [ "$(cat /tmp/client.* | grep --count '^200$')" -gt 0 ] || wrong 'no client was served'
  rm /tmp/client.*
}
