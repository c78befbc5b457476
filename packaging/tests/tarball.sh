#!/bin/bash
# Installs the archive with its service and removes it. Runs inside the container.
. /test/in-container.sh
archive=$(find /test -name 'outpost-*-linux.tar.gz')
name=$(basename "$archive" .tar.gz)

paths > /tmp/before
heading 'Install for one user'
run tar --extract --directory /tmp --file "$archive"
cd "/tmp/$name" || exit 1
run ./install.sh --prefix /opt/outpost
run /opt/outpost/bin/outpost --version
run ./install.sh --prefix /opt/outpost --remove
rm -rf /opt/outpost
nothing_left /tmp/before

heading 'A damaged archive is refused'
cp -r "/tmp/$name" /tmp/damaged
echo >> /tmp/damaged/README.md
! /tmp/damaged/install.sh --prefix /opt/outpost || wrong 'it was installed'
[ ! -e /opt/outpost ] || wrong 'something was installed'

heading 'Install the service'
run ./install.sh --service
wait_ready
add_model
run systemctl is-active outpost
run /usr/local/bin/outpost --version
chat
exposure
no_secrets

heading 'Install again over the running one, as an upgrade'
run ./install.sh --service
wait_ready
chat

heading 'Remove: the data stays'
run ./install.sh --service --remove
[ -e $data/outpost.redb ] || wrong 'the data went'
run rm -r /var/lib/outpost /etc/outpost
run userdel outpost
# The folders below the prefix are empty.
find /usr/local /etc/sysusers.d -type d -empty -delete
paths | diff /tmp/before - | grep '^>' && wrong 'files are left'
echo PASSED
