# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# The files of an installed Outpost, in the folder tree that the packages share. Sourced by packaging/build.

# Whether the program has an option or a command: the text is in its help.
has() { local program=$1 text=$2; shift 2; grep --quiet -- "$text" <<< "$("$program" "$@" --help 2> /dev/null)"; }

# The program that writes man pages and completions: the packaged one, or, if it is too old for that, a build of this
# checkout.
generator() {
  if "$1" generate --help > /dev/null 2>&1; then echo "$1"; return; fi
  local debug=$repository/target/debug/outpost
  [ -x "$debug" ] || (cd "$repository" && cargo build --locked >&2)
  echo "$debug"
}

# stage PROGRAM ROOT: fills ROOT/usr and ROOT/etc.
stage() {
  local program=$1 root=$2 maker
  install -D --mode=0755 "$program" "$root/usr/bin/outpost"
  strip --strip-unneeded --remove-section=.comment "$root/usr/bin/outpost"

  maker=$(generator "$program")
  "$maker" generate man --to "$work/man"
  "$maker" generate completions --to "$work/completions"
  install -d "$root/usr/share/man/man1"
  for page in "$work"/man/*.1; do
    gzip --no-name --best < "$page" > "$root/usr/share/man/man1/$(basename "$page").gz"
  done
  install -D --mode=0644 "$work/completions/outpost.bash" "$root/usr/share/bash-completion/completions/outpost"
  install -D --mode=0644 "$work/completions/_outpost" "$root/usr/share/zsh/vendor-completions/_outpost"
  install -D --mode=0644 "$work/completions/outpost.fish" "$root/usr/share/fish/vendor_completions.d/outpost.fish"

  install -D --mode=0644 "$packaging/systemd/sysusers.conf" "$root/usr/lib/sysusers.d/outpost.conf"
  stage_unit "$program" "$root"
  stage_documents "$program" "$root/usr/share/doc/outpost"
}

# The units and the configuration file. Programs from before 0.2 lack what these rely on, but are packaged for tests of
# upgrades: their defaults are the folders data and models in the unit's working directory.
stage_unit() {
  local program=$1 root=$2 units=$2/usr/lib/systemd/system
  install -D --mode=0644 "$packaging/systemd/outpost.service" "$units/outpost.service"
  install -d --mode=0755 "$root/etc/outpost"
  if has "$program" --config serve; then
    install --mode=0640 "$packaging/config.toml" "$root/etc/outpost/config.toml"
  else
    sed --in-place 's|^Environment=OUTPOST_CONFIG=.*|Environment=OUTPOST_NO_PULL=true|' "$units/outpost.service"
  fi
  # The command came with the messages to systemd, and with a start that does not print the admin key.
  if "$program" sign-in --help > /dev/null 2>&1; then
    install --mode=0644 "$packaging/systemd/outpost.socket" "$units/outpost.socket"
  else
    sed --in-place 's|^Type=.*|Type=simple\nStandardOutput=null|' "$units/outpost.service"
  fi
}

# stage_documents PROGRAM FOLDER
stage_documents() {
  local documents=$2
  install -d "$documents/examples"
  install --mode=0644 "$packaging"/examples/*.conf "$documents/examples"
  gzip --no-name --best < "$repository/CHANGELOG.md" > "$documents/CHANGELOG.md.gz"
  licenses "$1" | gzip --no-name --best > "$documents/THIRD-PARTY-LICENSES.gz"
}

# The texts of the licenses of everything in a program.
licenses() { python3 "$packaging/licenses.py" --target "$(machine_of "$1")-unknown-linux-gnu" --to /dev/stdout; }
