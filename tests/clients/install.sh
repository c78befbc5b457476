#!/usr/bin/env bash
# Installs the packages of the client suites. Packages that cannot be installed together have separate environments.
set -euo pipefail
cd "$(dirname "$0")/../.."

python3 -m venv target/clients
target/clients/bin/pip install --quiet uv==0.13.9
uv() { target/clients/bin/uv "$@"; }

uv pip install --quiet --python target/clients --requirement tests/clients/requirements.txt
environment() {
  local name=$1
  shift
  uv venv --quiet --allow-existing --python target/clients/bin/python "target/clients-$name"
  uv pip install --quiet --python "target/clients-$name" --requirement "tests/clients/requirements-$name.txt" "$@"
}
for name in frameworks llm aider lm-eval; do
  environment "$name"
done
environment programs --overrides tests/clients/overrides.txt
npm install --silent --no-package-lock --no-audit --no-fund --prefix tests/clients/node
CARGO_TARGET_DIR=target/clients-rust cargo test --quiet --locked --no-run --manifest-path tests/clients/rust/Cargo.toml
