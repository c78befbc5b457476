# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# The Debian package. Sourced by packaging/build.

# deb PROGRAM VERSION: writes outpost_VERSION_MACHINE.deb to $output.
deb() {
  need dpkg-deb dpkg
  local program=$1 version=$2 root=$work/deb machine package
  machine=$(debian_machine "$(machine_of "$program")")
  package=$output/outpost_${version}_$machine.deb
  stage "$program" "$root"
  install --mode=0644 "$packaging/debian/copyright" "$root/usr/share/doc/outpost/copyright"
  install -D --mode=0644 "$packaging/debian/lintian-overrides" "$root/usr/share/lintian/overrides/outpost"
  install -d "$root/DEBIAN"
  install --mode=0755 "$packaging"/debian/{postinst,prerm,postrm} "$root/DEBIAN"
  debian_changelog "$version" | gzip --no-name --best > "$root/usr/share/doc/outpost/changelog.gz"
  (cd "$root" && find etc -type f -printf '/%p\n') > "$root/DEBIAN/conffiles"
  [ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
  control "$root" "$version" "$machine" > "$root/DEBIAN/control"
  (cd "$root" && find usr -type f | LC_ALL=C sort | xargs --delimiter '\n' md5sum) > "$root/DEBIAN/md5sums"
  # gzip, because the output of xz depends on the number of threads, and dpkg of Debian 11 cannot read zstd.
  dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" > /dev/null
  echo "$package"
}

# The release sets the maintainer's address.
maintainer=${OUTPOST_MAINTAINER:-Outpost <maintainers@outpost.invalid>}

# debian_changelog VERSION: programs of Debian read this format.
debian_changelog() {
  printf 'outpost (%s) unstable; urgency=medium\n\n  * The changes are in /usr/share/doc/outpost/CHANGELOG.md.gz.\n\n' "$1"
  printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date --utc --date "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')"
}

# control ROOT VERSION MACHINE: the package's fields.
control() {
  cat << END
Package: outpost
Version: $2
Architecture: $3
Maintainer: $maintainer
Section: net
Priority: optional
Installed-Size: $(du --summarize --apparent-size --block-size=1024 "$1/usr" | cut --fields=1)
Depends: $(libraries "$1/usr/bin/outpost"), ca-certificates, systemd | systemd-standalone-sysusers
Description: self-hosted AI server in one program
 Projects, API keys, limits, usage tracking and local models behind APIs that
 clients of OpenAI, Anthropic and Ollama can use. It needs no external
 database and no cloud provider, and, once models are installed, no network.
END
}

# The packages of the libraries that a program is linked to.
libraries() {
  local needed
  needed="libc6 (>= $(glibc_of "$1"))"
  if grep --quiet 'NEEDED.*libgcc_s' <<< "$(LC_ALL=C readelf --dynamic "$1")"; then needed+=', libgcc-s1'; fi
  echo "$needed"
}
