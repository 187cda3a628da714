#!/bin/sh
# A Docker engine by hand, for machines without a running one (CI, a container with root).
#   sandbox/dev-engine.sh FOLDER [DOCKERD OPTIONS]     then: export DOCKER_HOST=unix://FOLDER/docker.sock
# Nothing outside FOLDER is touched; end it with: kill "$(cat FOLDER/dockerd.pid)"
# No bridge and no firewall rules are made: the sandbox's containers have no network at all.
set -eu
folder=$(realpath -m "${1:?usage: dev-engine.sh FOLDER}")
shift
mkdir -p "$folder"
exec dockerd \
  --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/dockerd.pid" \
  --host "unix://$folder/docker.sock" --bridge=none --iptables=false --ip6tables=false \
  --exec-opt native.cgroupdriver=cgroupfs "$@"
