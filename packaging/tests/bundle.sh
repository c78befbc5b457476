#!/bin/bash
# Installs the bundle on a machine without a network and uses what is in it. Runs inside the container.
. /test/in-container.sh
archive=$(find /test -name 'outpost-*-airgap.tar')
name=$(basename "$archive" .tar)
way=${BUNDLE_WAY:---deb}

heading 'The only network is loopback'
run cat /proc/net/dev
[ "$(grep --count : /proc/net/dev)" = 1 ] || wrong 'there is another network'

paths > /tmp/before
heading 'Install'
run tar --extract --directory /tmp --file "$archive"
cd "/tmp/$name" || exit 1
run ls -l
run ./install.sh "$way"
wait_ready
run systemctl is-active outpost
run ls /var/lib/outpost/models

heading 'Chat'
chat

heading 'Picture'
api /openai/v1/images/generations --header 'Accept: image/png' --output /tmp/apple.png --data \
  '{"model": "pictogram", "prompt": "a red apple", "seed": 1}' || wrong 'no picture'
head --bytes 4 /tmp/apple.png | grep --quiet PNG || wrong 'not a PNG file'
stat --format '%s bytes of PNG' /tmp/apple.png

heading 'Embedding'
numbers=$(api /openai/v1/embeddings --data '{"model": "all-minilm-l6-v2", "input": "What is an outpost?"}' |
  grep --only-matching '"embedding":\[[^]]*' | tr --delete --complement ',' | wc --bytes)
[ "$numbers" = 383 ] || wrong "$((numbers + 1)) dimensions"
echo '384 dimensions'

heading 'Backup, loss, restore'
run api /v1/projects --data '{"name": "shop", "environment": "production"}'
echo
cd /var/lib/outpost || exit 1
key=$(cat $data/admin.key)
run runuser -u outpost -- outpost --data $data backup /var/lib/outpost/backup.redb
run systemctl stop outpost
mv $data /tmp/lost
run runuser -u outpost -- outpost --data $data restore /var/lib/outpost/backup.redb
run runuser -u outpost -- outpost --data $data check
run systemctl start outpost
wait_ready
[ -e $data/admin.key ] || { install -o outpost -g outpost -m 0600 /tmp/lost/admin.key $data/admin.key; echo 'the key is not in the backup; it is kept elsewhere'; }
[ "$key" = "$(cat $data/admin.key)" ] || wrong 'the admin key is another one'
api '/v1/projects?limit=100' | grep --quiet '"shop"' || wrong 'the project is gone'
echo 'the project is there, and the old key is valid'
chat
no_secrets

heading 'A damaged bundle is refused'
cp -r "/tmp/$name" /tmp/damaged
echo >> /tmp/damaged/install.md
! /tmp/damaged/install.sh "$way" || wrong 'it was installed'
rm -r /tmp/damaged
cd /

if [ "$way" = --deb ]; then
  heading 'Remove'
  run dpkg --purge outpost
  nothing_left /tmp/before
fi
echo PASSED
