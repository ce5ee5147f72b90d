#!/usr/bin/env bash
# Install the servers that the tests start for themselves: RabbitMQ. (Redis comes inside a wheel.)
# At home a server that cannot be had is a loud line and exit 0: its tests will be skipped. With CI=true it is exit 1.
set -euo pipefail

have_rabbitmq() { [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null; }

# Debian starts a service as it installs it. The tests run private nodes only, so nothing may be left running.
install_without_starting() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

if have_rabbitmq; then
    echo "servers: RabbitMQ is here"
    exit 0
fi

reason="not root: run 'sudo make servers', or install rabbitmq-server yourself"
if ! command -v apt-get >/dev/null; then
    reason="no apt-get: install rabbitmq-server with your system's own packages"
elif [ "$(id -u)" -eq 0 ]; then
    echo "servers: installing rabbitmq-server by apt"
    install_without_starting rabbitmq-server || true
    if have_rabbitmq; then
        echo "servers: RabbitMQ is here"
        exit 0
    fi
    reason="apt-get could not install rabbitmq-server"
fi

echo "servers: *** NO RABBITMQ: tests marked 'rabbitmq' WILL BE SKIPPED ($reason) ***" >&2
[ "${CI:-}" != true ] || exit 1
