# shellcheck shell=bash disable=SC2154  # values come from the script that sources this file
# Everything that a machine without a network needs, in one archive. Sourced by packaging/build.

starter_models=(smollm2-135m-instruct all-minilm-l6-v2)

# bundle PROGRAM VERSION MODELS: writes outpost-VERSION-MACHINE-airgap.tar to $output.
bundle() {
  local program=$1 version=$2 models=$3 machine name folder model output_of_all=$output options=()
  machine=$(machine_of "$program")
  name=outpost-$version-$machine-airgap
  folder=$work/$name
  mkdir -p "$folder/models"
  for model in "${starter_models[@]}"; do
    [ -d "$models/$model" ] || fail "$models/$model does not exist; pull it: outpost --models $models models pull $model"
    "$program" --models "$models" models export "$model" "$folder/models" >&2
    options+=(--model "$model")
  done
  output=$folder
  tarball "$program" "$version" > /dev/null
  rm -rf "$work/man" "$work/completions"
  deb "$program" "$version" > /dev/null
  output=$output_of_all
  python3 "$packaging/sbom.py" --target "$machine-unknown-linux-gnu" "${options[@]}" --to "$folder/sbom.cdx.json"
  licenses "$program" > "$folder/THIRD-PARTY-LICENSES"
  install --mode=0644 "$repository/LICENSE" "$repository/docs/install.md" "$folder"
  install --mode=0755 "$packaging/bundle/install.sh" "$folder"
  printf 'version %s\nmachine %s\nglibc %s\nmodels %s\n' "$version" "$machine" "$(glibc_of "$program")" "${starter_models[*]} pictogram" > "$folder/BUILD-INFO"
  checksums "$folder"
  pack "$output/$name.tar" "$work" "$name"
  echo "$output/$name.tar"
}
