# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# The archive for any Linux with a new enough glibc. Sourced by packaging/build.

# tarball PROGRAM VERSION: writes outpost-VERSION-MACHINE-linux.tar.gz to $output.
tarball() {
  local program=$1 version=$2 name folder root=$work/tarball
  name=outpost-$version-$(machine_of "$program")-linux
  folder=$work/$name
  stage "$program" "$root"
  # Below a prefix, such as /usr/local, in place of /usr.
  mkdir "$folder"
  mv "$root"/usr/* "$folder"
  mv "$root/etc/outpost" "$folder/etc"
  # Only Debian has folders of vendors.
  mv "$folder/share/zsh/vendor-completions" "$folder/share/zsh/site-functions"
  install --mode=0644 "$repository/LICENSE" "$repository/README.md" "$folder"
  install --mode=0755 "$packaging/install/install.sh" "$folder"
  printf 'version %s\nglibc %s\n' "$version" "$(glibc_of "$folder/bin/outpost")" > "$folder/BUILD-INFO"
  checksums "$folder"
  pack "$output/$name.tar.gz" "$work" "$name"
  echo "$output/$name.tar.gz"
}
