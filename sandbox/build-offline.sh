#!/bin/sh
# The image of `--sandbox docker` without a registry.
#   sandbox/build-offline.sh [host]         base: this machine's own Python, about 60 MB, 3 s
#   sandbox/build-offline.sh debootstrap    base: Debian with its python3, by a Debian mirror, 1 min
# PYTHON names the Python that has pettingllms installed (default: python3); PACKAGES is a
# comma-separated list of third-party packages for programs (only with `host`).
set -eu
python=${PYTHON:-python3}
base=${1:-host}
tag=pettingllms-sandbox-base:debootstrap

case $base in
host)
  exec "$python" -m pettingllms.cli.sandbox build --base host --packages "${PACKAGES:-}" ;;
debootstrap)
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  debootstrap --variant=minbase --include=python3-minimal,libpython3-stdlib "${SUITE:-trixie}" "$root"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/*
  chmod 1777 "$root/tmp"
  tar -C "$root" -c . | docker import --change 'ENV LANG=C.UTF-8' - "$tag"
  "$python" -m pettingllms.cli.sandbox build --base "$tag" ;;
*)
  echo "usage: build-offline.sh [host | debootstrap]" >&2
  exit 2 ;;
esac
