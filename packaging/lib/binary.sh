# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# The program for distributions of the last years: it needs glibc 2.31 (Debian 11, Ubuntu 20.04, RHEL 9). Sourced by
# packaging/build.

oldest_glibc=2.31

# binary: writes target/dist/outpost and target/dist/outpost.debug. zig links against stubs of that glibc and compiles
# the C code; packaging/tools installs it.
binary() {
  local target built path
  target=$(uname --machine)-unknown-linux-gnu
  path=$repository/target/packaging-tools/bin:$PATH
  PATH=$path command -v cargo-zigbuild > /dev/null || fail 'cargo-zigbuild is missing; run packaging/tools'
  # Paths of this machine do not get into the program, so that a checkout elsewhere makes the same one.
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} flags
  flags="--remap-path-prefix=$repository=/outpost --remap-path-prefix=$cargo_home=/cargo"
  (cd "$repository" &&
    PATH=$path RUSTFLAGS="${RUSTFLAGS:-} $flags" CFLAGS="${CFLAGS:-} -ffile-prefix-map=$cargo_home=/cargo" \
      cargo zigbuild --locked --profile dist --target "$target.$oldest_glibc" --package outpost --bin outpost >&2)
  built=$repository/target/$target/dist/outpost
  check_binary "$built"
  mkdir -p "$repository/target/dist"
  objcopy --only-keep-debug "$built" "$repository/target/dist/outpost.debug"
  strip --strip-unneeded --remove-section=.comment -o "$repository/target/dist/outpost" "$built"
  echo "$repository/target/dist/outpost"
}

# check_binary FILE: it needs no newer glibc, and nothing of the sanitizers that zig compiles into C code by default.
check_binary() {
  local newest symbols
  newest=$(glibc_of "$1")
  [ "$(printf '%s\n' "$newest" "$oldest_glibc" | sort --version-sort | tail -n 1)" = "$oldest_glibc" ] ||
    fail "the program needs glibc $newest"
  symbols=$(nm "$1" 2> /dev/null | grep --count '__ubsan_handle_' || true)
  [ "$symbols" = 0 ] || fail "the program has $symbols functions of the sanitizer of undefined behavior"
}
