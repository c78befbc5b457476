#!/bin/bash
# Installs, upgrades, removes and purges the Debian package. Runs inside the container.
. /test/in-container.sh
new=$(find /test -name 'outpost_*.deb')
version=$(dpkg-deb --field "$new" Version)

paths > /tmp/before
if [ -e /test/old.deb ]; then
  heading "Install $(dpkg-deb --field /test/old.deb Version)"
  run dpkg --install /test/old.deb
  wait_ready
  add_model
  chat
  run api /v1/projects --data '{"name": "shop", "environment": "production"}'
  key=$(cat $data/admin.key)
  echo
  heading "Upgrade to $version"
  echo '# edited by the administrator' >> /etc/outpost/notes
  run dpkg --install "$new"
  wait_ready
  [ "$key" = "$(cat $data/admin.key)" ] || wrong 'the admin key is another one'
  grep --quiet '"shop"' <<< "$(api '/v1/projects?limit=100')" || wrong 'the project is gone'
  echo 'the project and the admin key are as before'
else
  heading "Install $version"
  run dpkg --install "$new"
  wait_ready
  add_model
fi

heading 'Use'
run systemctl is-active outpost
run outpost --version
run systemctl show outpost --property MainPID,User,MemoryCurrent
chat
exposure
no_secrets
run stat --format '%A %U:%G %n' /etc/outpost /var/lib/outpost $data $data/admin.key
if outpost config --help > /dev/null 2>&1; then run runuser -u outpost -- outpost config check; fi
if outpost health --help > /dev/null 2>&1; then run runuser -u outpost -- outpost --data $data health; fi
if outpost sign-in --help > /dev/null 2>&1; then
  grep --quiet "$url" <<< "$(runuser -u outpost -- outpost --data $data sign-in)" || wrong 'no link to sign in'
  echo 'outpost sign-in prints a link'
fi
run bash -n /usr/share/bash-completion/completions/outpost
run gzip --test /usr/share/man/man1/outpost-serve.1.gz
run dpkg --verify outpost

heading 'Start, with nothing loaded'
cold_start

heading 'Restart, with clients'
restart_under_load

heading 'Remove: the data stays'
run dpkg --remove outpost
[ ! -e /usr/bin/outpost ] && [ -e $data/outpost.redb ] || wrong 'the program stayed, or the data went'
! curl --silent --output /dev/null $url/healthz || wrong 'the server still runs'

heading 'Install again: the data is there'
run dpkg --install "$new"
wait_ready
chat

heading 'Move the data of a checkout, which belongs to another user, to the service'
units=(outpost.service)
if systemctl --quiet is-active outpost.socket; then units=(outpost.socket outpost.service); fi
run systemctl stop "${units[@]}"
mkdir /tmp/checkout
mv /var/lib/outpost/* /tmp/checkout
chown --recursive root:root /tmp/checkout
systemctl start "${units[@]}"
wait_ready
[ -e $data/outpost.redb ] || wrong 'the service has no new database'
run systemctl stop "${units[@]}"
rm -r $data /var/lib/outpost/models
cp -r /tmp/checkout/data /tmp/checkout/models /var/lib/outpost/
chown -R outpost:outpost /var/lib/outpost
rm -r /tmp/checkout
systemctl reset-failed outpost.service
run systemctl start "${units[@]}"
wait_ready
await lists_model
chat

heading 'Purge: nothing stays'
rm -f /etc/outpost/notes
run dpkg --purge outpost
nothing_left /tmp/before
! getent passwd outpost || wrong 'the user stayed'
! getent group outpost || wrong 'the group stayed'
! systemctl cat outpost.socket > /dev/null 2>&1 || wrong 'the socket unit stayed'
! systemctl cat outpost.service > /dev/null 2>&1 || wrong 'the unit stayed'
echo PASSED
