# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# The container image. Sourced by packaging/build.

# oci PROGRAM VERSION: writes outpost-VERSION-MACHINE.oci.tar to $output.
oci() {
  need dpkg-deb dpkg
  need apt-get apt
  local program=$1 version=$2 root=$work/oci machine image deb options=()
  machine=$(machine_of "$program")
  image=$output/outpost-$version-$machine.oci.tar
  mkdir "$work/debs"
  # As an ordinary user, apt-get warns that it cannot drop its rights, which it does not have.
  (cd "$work/debs" && apt-get --quiet --quiet download "libc6:$(debian_machine "$machine")" "libgcc-s1:$(debian_machine "$machine")" ca-certificates)
  for deb in "$work"/debs/*.deb; do options+=(--deb "$deb"); done
  if "$program" health --help > /dev/null 2>&1; then options+=(--health-check); fi

  install -D --mode=0755 "$program" "$root/usr/bin/outpost"
  strip --strip-unneeded --remove-section=.comment "$root/usr/bin/outpost"
  install -d "$root/usr/share/doc/outpost"
  install --mode=0644 "$repository/LICENSE" "$root/usr/share/doc/outpost/copyright"
  licenses "$program" > "$root/usr/share/doc/outpost/THIRD-PARTY-LICENSES"
  python3 "$packaging/oci.py" --root "$root" --version "$version" --machine "$machine" "${options[@]}" --to "$image"
  echo "$image"
}
