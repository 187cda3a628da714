#!/bin/sh
# The image of `--sandbox docker` without a registry: Debian with its python3, by a Debian mirror.
# PYTHON names the Python that has pettingllms installed (default: python3).
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tag=pettingllms-sandbox-base:debootstrap
debootstrap --variant=minbase --include=python3-minimal,libpython3-stdlib "${SUITE:-trixie}" "$root"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* \
  "$root"/usr/share/man/* "$root"/usr/share/locale/*
chmod 1777 "$root/tmp"
tar -C "$root" -c . | docker import --change 'ENV LANG=C.UTF-8' - "$tag"
"${PYTHON:-python3}" -m pettingllms.cli.sandbox build --base "$tag"
