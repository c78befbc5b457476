#!/bin/sh
# Installs Outpost and its starter models from this folder. Works without a network.
set -eu

usage() {
    cat <<'END'
Usage: ./install.sh [--deb | --service] [--prefix DIR] [--models DIR]

  --deb         install the Debian package with its service; needs root
  --service     install the program below the prefix, and a systemd service; needs root
  --prefix DIR  where the program goes without --deb [default: /usr/local for root, otherwise ~/.local]
  --models DIR  where the models go without a service [default: ~/.local/share/outpost/models]
END
}

fail() { echo "install.sh: $1" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
way=user models=
while [ $# -gt 0 ]; do
    case $1 in
        --deb) way=deb ;;
        --service) way=service ;;
        --prefix | --models)
            [ $# -gt 1 ] || fail "$1 needs a folder"
            if [ "$1" = --prefix ]; then prefix=$2; else models=$2; fi
            shift ;;
        --help) usage; exit ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
if [ "$way" != user ]; then
    [ "$(id -u)" = 0 ] || fail "--$way needs root"
    [ -z "$models" ] || fail '--models is for an installation without a service; set models in /etc/outpost/config.toml'
    models=/var/lib/outpost/models
fi
models=${models:-${HOME:?}/.local/share/outpost/models}

(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail 'a file is damaged; nothing is installed'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

case $way in
    deb)
        dpkg --install "$here"/outpost_*.deb
        program=/usr/bin/outpost
        ;;
    *)
        tar -xzf "$here"/outpost-*-linux.tar.gz -C "$scratch"
        set -- --prefix "$prefix"
        if [ "$way" = service ]; then set -- "$@" --service; fi
        unpacked=$(echo "$scratch"/outpost-*-linux)
        "$unpacked/install.sh" "$@"
        program=$prefix/bin/outpost
        ;;
esac

# As the service's user, to whom this folder may be closed.
as_owner() { if [ "$way" = user ]; then "$@"; else runuser -u outpost -- "$@"; fi; }

chmod 0755 "$scratch"
cp "$here"/models/*.tar "$scratch"
chmod 0644 "$scratch"/*.tar
as_owner mkdir -p "$models"
for file in "$scratch"/*.tar; do
    name=$(basename "$file" .tar)
    if [ -e "$models/$name" ]; then
        echo "$name is installed already."
    else
        (cd / && as_owner "$program" --models "$models" models import "$file")
    fi
done
# The image model is in the program.
if [ ! -e "$models/pictogram" ]; then (cd / && as_owner "$program" --models "$models" models pull pictogram); fi

if [ "$way" = user ]; then
    echo "To start: $program --models $models --data $(dirname "$models")/data serve"
else
    echo 'Outpost listens on http://127.0.0.1:8080. The admin key is in /var/lib/outpost/data/admin.key.'
fi
