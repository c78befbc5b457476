#!/usr/bin/env bash
# Installs the packages of the client suites: one environment per set of packages that can be installed together.
set -euo pipefail
cd "$(dirname "$0")/../.."

python3 -m venv target/clients
target/clients/bin/pip install --quiet uv==0.13.9
install() { target/clients/bin/uv pip install --quiet --python "target/$1" "${@:2}"; }
venv() { target/clients/bin/uv venv --quiet --allow-existing --python target/clients/bin/python "target/$1"; }

install clients --requirement tests/clients/requirements.txt
venv clients-frameworks
install clients-frameworks --requirement tests/clients/requirements-frameworks.txt
venv clients-llm
install clients-llm llm==0.36
venv clients-aider
install clients-aider aider-chat==0.86.2
npm install --silent --no-package-lock --no-audit --no-fund --prefix tests/clients/node
