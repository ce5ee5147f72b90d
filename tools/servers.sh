#!/usr/bin/env bash
# Install the servers that the tests start for themselves: RabbitMQ and PostgreSQL. (Redis comes inside a wheel.)
# At home a server that cannot be had is a loud line and exit 0: its tests will be skipped. With CI=true it is exit 1.
set -euo pipefail

have_rabbitmq() { [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null; }
have_postgresql() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; }

# Debian starts a service as it installs it, and makes a cluster of PostgreSQL. The tests run private servers only, so
# nothing may be left running.
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

missing=0
provide() { # name as people say it, the function that looks for it, the package, the mark of its tests
    if "$2"; then
        echo "servers: $1 is here"
        return
    fi
    local reason="not root: run 'sudo make servers', or install $3 yourself"
    if ! command -v apt-get >/dev/null; then
        reason="no apt-get: install $3 with your system's own packages"
    elif [ "$(id -u)" -eq 0 ]; then
        echo "servers: installing $3 by apt"
        install_without_starting "$3" || true
        if "$2"; then
            echo "servers: $1 is here"
            return
        fi
        reason="apt-get could not install $3"
    fi
    echo "servers: *** NO ${1^^}: tests marked '$4' WILL BE SKIPPED ($reason) ***" >&2
    missing=1
}

provide RabbitMQ have_rabbitmq rabbitmq-server rabbitmq
provide PostgreSQL have_postgresql postgresql postgres
[ "$missing" = 0 ] || [ "${CI:-}" != true ] || exit 1
