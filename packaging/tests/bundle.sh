#!/bin/bash
# Installs the bundle on a machine without a network and uses what is in it. Runs inside the container.
. /test/in-container.sh
archive=$(find /test -name 'outpost-*-airgap.tar')
name=$(basename "$archive" .tar)

heading 'The only network is loopback'
run cat /proc/net/dev
[ "$(grep --count : /proc/net/dev)" = 1 ] || wrong 'there is another network'

paths > /tmp/before
heading 'Install'
run tar --extract --directory /tmp --file "$archive"
cd "/tmp/$name" || exit 1
run ls -l
run ./install.sh --deb
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
grep --quiet '"shop"' <<< "$(api '/v1/projects?limit=100')" || wrong 'the project is gone'
echo 'the project is there, and the old key is valid'
chat
no_secrets

heading 'A damaged bundle is refused'
cp -r "/tmp/$name" /tmp/damaged
echo >> /tmp/damaged/install.md
! /tmp/damaged/install.sh --deb || wrong 'it was installed'
rm -r /tmp/damaged
cd /

heading 'Remove'
run dpkg --purge outpost
nothing_left /tmp/before

heading 'Install the archive of the bundle, with a service'
run "/tmp/$name/install.sh" --service
wait_ready
await lists_model
run systemctl is-active outpost
chat
tar --extract --directory /tmp --file "/tmp/$name"/outpost-*-linux.tar.gz
run /tmp/outpost-*-linux/install.sh --service --remove
rm -r /var/lib/outpost /etc/outpost
userdel outpost

heading 'Install for one user, without root'
useradd --create-home ann
run runuser -u ann -- "/tmp/$name/install.sh"
cd /home/ann || exit 1
share=/home/ann/.local/share/outpost
runuser -u ann -- /home/ann/.local/bin/outpost --models $share/models --data $share/data serve > /tmp/serve.log 2>&1 &
server=$!
data=$share/data
wait_ready
await lists_model
chat
kill $server
wait $server
[ "$(stat --format %U $share/data/outpost.redb)" = ann ] || wrong 'the data belongs to another user'
echo PASSED
