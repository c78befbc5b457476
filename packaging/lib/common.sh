# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# Functions and values that all packages share. Sourced by packaging/build and packaging/test.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
packaging=$repository/packaging

# Note: `PROGRAM | grep --quiet` fails now and then under `pipefail`, when grep ends at the first match and the program is
# still writing. Hence `grep --quiet <<< "$(PROGRAM)"`.

fail() { printf 'packaging: %s\n' "$1" >&2; exit 1; }

# need PROGRAM DEBIAN-PACKAGE
need() { command -v "$1" > /dev/null || fail "$1 is missing; install the Debian package $2"; }

# The version in Cargo.toml.
source_version() { sed -n 's/^version = "\(.*\)"/\1/p; T; q' "$repository/Cargo.toml"; }

# The time that all files of a package have: of the last commit, unless the caller sets it.
set_source_date() {
  export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct 2> /dev/null)}
  [ -n "$SOURCE_DATE_EPOCH" ] || fail 'this is not a git checkout; set SOURCE_DATE_EPOCH to the time of the release in seconds'
}

# Names of the machine of an ELF file: what uname, and what Debian calls it.
machine_of() {
  case $(LC_ALL=C readelf --file-header "$1" | sed -n 's/.*Machine: *//p') in
    *X86-64*) echo x86_64 ;;
    *AArch64*) echo aarch64 ;;
    *) fail "$1 is not a program for x86_64 or aarch64" ;;
  esac
}
debian_machine() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac; }

# The newest version of glibc of which a program uses a symbol, such as 2.31.
glibc_of() { LC_ALL=C objdump --dynamic-syms "$1" | grep --only-matching 'GLIBC_[0-9.]*' | sort --version-sort --unique | tail -n 1 | cut -d _ -f 2; }

# pack ARCHIVE.tar[.gz] PARENT NAME: the same folder always makes the same archive.
pack() {
  local archive=$1 parent=$2 name=$3
  local order=(--sort=name --format=gnu "--mtime=@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner)
  case $archive in
    *.gz) tar "${order[@]}" --create --directory "$parent" "$name" | gzip --no-name > "$archive" ;;
    *) tar "${order[@]}" --create --directory "$parent" --file "$archive" "$name" ;;
  esac
}

# checksums FOLDER: writes FOLDER/SHA256SUMS over all of its files.
checksums() {
  (cd "$1" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs --delimiter '\n' sha256sum > SHA256SUMS)
}
