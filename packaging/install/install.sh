#!/bin/sh
# Installs Outpost from this folder, or removes it. Works without a network.
set -eu

usage() {
    cat <<'END'
Usage: ./install.sh [--prefix DIR] [--service] [--remove]

  --prefix DIR  where the program, man pages and completions go [default: /usr/local for root, otherwise ~/.local]
  --service     also the system user, the systemd unit and /etc/outpost; needs root
  --remove      remove what this script installed with the same options; data, models and settings are kept
END
}

fail() { echo "install.sh: $1" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
service=no remove=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -gt 1 ] || fail '--prefix needs a folder'; prefix=$2; shift ;;
        --service) service=yes ;;
        --remove) remove=yes ;;
        --help) usage; exit ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
case $prefix in
    *[!A-Za-z0-9/._-]*) fail "--prefix may have letters, digits and / . _ - only: $prefix" ;;
    /*) ;;
    *) fail "--prefix must begin with /: $prefix" ;;
esac
if [ "$service" = yes ] && [ "$(id -u)" != 0 ]; then fail '--service needs root'; fi
units=/etc/systemd/system
users=/etc/sysusers.d/outpost.conf

# Files that go below the prefix. Units and users have fixed places.
files() { (cd "$here" && find bin share -type f); }

remove() {
    if [ "$service" = yes ]; then
        systemctl disable --now outpost.socket outpost.service 2>/dev/null || true
        rm -f "$units/outpost.socket" "$units/outpost.service" "$users"
        systemctl daemon-reload 2>/dev/null || true
    fi
    files | while IFS= read -r file; do rm -f "$prefix/$file"; done
    rm -rf "$prefix/share/doc/outpost"
    echo "Outpost is removed from $prefix. Data in /var/lib/outpost and settings in /etc/outpost are kept."
}

install_files() {
    (cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail 'a file is damaged; nothing is installed'
    # The program must run here before anything is replaced.
    "$here/bin/outpost" --version >/dev/null ||
        fail "this program does not run on this machine; it needs $(sed -n 's/^glibc/glibc/p' "$here/BUILD-INFO") or newer"
    files | while IFS= read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        # A new file in place of the old one: a running program keeps its own.
        cp "$here/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done
    echo "$("$prefix/bin/outpost" --version) is installed in $prefix/bin."
}

install_service() {
    mkdir -p /etc/sysusers.d /etc/outpost
    cp "$here/lib/sysusers.d/outpost.conf" "$users"
    systemd-sysusers "$users"
    if [ -e "$here/etc/config.toml" ] && [ ! -e /etc/outpost/config.toml ]; then
        cp "$here/etc/config.toml" /etc/outpost/config.toml
        chmod 0640 /etc/outpost/config.toml
    fi
    chown -R root:outpost /etc/outpost
    chmod 0750 /etc/outpost
    install -d -o outpost -g outpost -m 0750 /var/lib/outpost
    sed "s|^ExecStart=/usr/bin/outpost|ExecStart=$prefix/bin/outpost|" \
        "$here/lib/systemd/system/outpost.service" >"$units/outpost.service"
    names=outpost.service
    if [ -e "$here/lib/systemd/system/outpost.socket" ]; then
        cp "$here/lib/systemd/system/outpost.socket" "$units/outpost.socket"
        names='outpost.socket outpost.service'
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # shellcheck disable=SC2086  # a list
        systemctl enable $names
        # The socket takes the address over from a service that had opened it itself.
        if ! systemctl --quiet is-active outpost.socket; then systemctl stop outpost.service; else names=outpost.service; fi
        # shellcheck disable=SC2086
        systemctl restart $names
    else
        echo 'systemd is not running here. With systemd: systemctl enable --now '"$names"
    fi
}

if [ "$remove" = yes ]; then remove; exit; fi
install_files
if [ "$service" = yes ]; then install_service; fi
