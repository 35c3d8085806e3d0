"""Real vLLM engines as processes: started, frozen, killed, restarted, and surely ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families
from real_install import Installed

MODEL = "tiny"
CONTEXT = 2048
BLOCK = 128
"""Tokens of a KV block: vLLM's default on processors."""
START_S = 300.0
"""Three engines at once take a minute on two processors that are shared with others."""
PATIENCE_S = 120.0
"""For whatever takes a second at most on a quiet machine."""
STOP_S = 20.0
_LOOPBACK = "127.0.0.1"

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": _LOOPBACK,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Without these, every engine pins its threads to the same processors.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "MKL_NUM_THREADS": "1",
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp,self,sm",
}


@attrs.frozen(kw_only=True)
class EngineOptions:
    """How one engine is run."""

    iid: str
    kv_role: str | None
    """`kv_producer`, `kv_consumer` or `kv_both`; None: without a connector."""
    lease_s: int = 30
    blocks: int = 64
    max_num_queued_reqs: int | None = None

    def arguments(self, *, model: Path, port: int) -> list[str]:
        """The command line of vLLM's server."""
        options: dict[str, Any] = {
            "model": model,
            "served-model-name": MODEL,
            "host": _LOOPBACK,
            "port": port,
            "dtype": "float32",
            "max-model-len": CONTEXT,
            "max-num-seqs": 16,
            "seed": 0,
            "num-gpu-blocks-override": self.blocks,
            "tool-call-parser": "hermes",
        }
        if self.kv_role is not None:
            options["kv-transfer-config"] = json.dumps(
                {
                    "kv_connector": "NixlConnector",
                    "kv_role": self.kv_role,
                    "kv_buffer_device": "cpu",
                    "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
                }
            )
        if self.max_num_queued_reqs is not None:
            options["max-num-queued-reqs"] = self.max_num_queued_reqs
        pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return ["--enforce-eager", "--enable-auto-tool-choice", *pairs]


class Counters:
    """What an engine's `/metrics` page said at one moment."""

    def __init__(self, page: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(page) for sample in family.samples
        ]

    def __getitem__(self, name: str) -> float:
        """The sum over all samples of that name; labels as `name{source=local_compute}`."""
        name, _, labels = name.partition("{")
        wanted = dict(pair.split("=") for pair in labels.rstrip("}").split(",") if pair)
        found = [
            sample.value
            for sample in self._samples
            if sample.name == name and wanted.items() <= sample.labels.items()
        ]
        if not found:
            raise KeyError(f"the engine has no metric {name} with the labels {wanted}")
        return sum(found)

    @property
    def names(self) -> frozenset[str]:
        """The names of all samples."""
        return frozenset(sample.name for sample in self._samples)


class RealEngine:
    """One engine. Its address stays the same over restarts."""

    def __init__(self, options: EngineOptions, installed: Installed, folder: Path) -> None:
        self.options = options
        self.iid = options.iid
        self.starts = 0
        self.ready_s = 0.0
        """How long its last start took, as far as somebody waited for it."""
        self._installed = installed
        self._folder = folder
        self._port, self._side_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{_LOOPBACK}:{self._port}"

    @property
    def log(self) -> Path:
        """What the present process wrote."""
        return self._folder / f"{self.iid}-{self.starts}.log"

    # Its process

    def start(self) -> None:
        """Start it without waiting; it gets a SIGTERM should this process end before it."""
        assert self._process is None, f"{self.iid} runs already"
        self.starts += 1
        server = [str(self._installed.python), "-m", "vllm.entrypoints.openai.api_server"]
        tied = shutil.which("setpriv")
        command = [tied, "--pdeathsig", "TERM", *server] if tied else server
        side = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": _LOOPBACK,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._side_port),
        }
        with self.log.open("wb") as log:
            self._begun = time.monotonic()
            self._process = subprocess.Popen(  # noqa: S603 - vLLM's own server
                command + self.options.arguments(model=self._installed.model, port=self._port),
                env=os.environ | _ENVIRONMENT | side,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
            )

    def wait_ready(self) -> None:
        """Wait until `/health` is 200; `AssertionError` with the end of its log if it never is."""
        assert self._process is not None
        process = self._process

        def healthy() -> bool:
            ended = process.poll() is not None
            assert not ended, f"{self.iid} ended while it started:\n{self._end_of_log()}"
            return self.healthy

        wait_until(healthy, f"{self.iid} is ready", within=START_S)
        self.ready_s = time.monotonic() - self._begun

    @property
    def healthy(self) -> bool:
        """Whether its `/health` is 200 now."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL to all of its processes; returns when they are gone."""
        self._signal_all(signal.SIGKILL)
        self._reap(PATIENCE_S)

    def stop(self) -> None:
        """End it in order, or else by force. Nothing happens if it does not run."""
        if self._process is None:
            return
        self._signal_all(signal.SIGCONT)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def restart(self) -> None:
        """A new process at the same address; waits until it is ready."""
        self.stop()
        self.start()
        self.wait_ready()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop what computes, and leave its HTTP server running: requests go in, none comes out."""
        cores = [pid for pid in self._group() if pid != self._leader]
        assert cores, f"{self.iid} has no processes but its server"
        for pid in cores:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in cores:
                if is_alive(pid):
                    os.kill(pid, signal.SIGCONT)

    @property
    def _leader(self) -> int:
        assert self._process is not None, f"{self.iid} does not run"
        return self._process.pid

    def _group(self) -> list[int]:
        """The processes of its session: it leads one of its own."""
        return [pid for pid in all_processes() if session_of(pid) == self._leader]

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        for pid in self._group():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it ended meanwhile

    def _reap(self, within: float) -> None:
        if self._process is None:
            return
        self._process.wait(within)
        wait_until(lambda: not self._group(), f"all processes of {self.iid} are gone", within)
        self._process = None

    def _end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    # Asking it

    def counters(self) -> Counters:
        """Its metrics now."""
        return Counters(httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text)

    @property
    def pinned(self) -> float:
        """Share of its KV blocks that are in use."""
        return self.counters()["vllm:kv_cache_usage_perc"]

    @property
    def busy(self) -> float:
        """Requests that it has, running or waiting."""
        now = self.counters()
        return now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"]

    def post(self, path: str, body: object) -> httpx.Response:
        """One request, past the router."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=PATIENCE_S)


class Engines:
    """Several engines, started together."""

    def __init__(
        self, options: Sequence[EngineOptions], installed: Installed, folder: Path
    ) -> None:
        self.all = [RealEngine(each, installed, folder) for each in options]

    def __getitem__(self, iid: str) -> RealEngine:
        """The engine of that name."""
        return next(engine for engine in self.all if engine.iid == iid)

    def start(self) -> None:
        """Start all, and wait until all are ready. If one fails none is left."""
        try:
            for engine in self.all:
                engine.start()
            for engine in self.all:
                engine.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all."""
        for engine in self.all:
            engine.stop()


# The machine


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now, all different."""
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(true: Callable[[], bool], what: str, within: float = PATIENCE_S) -> float:
    """Poll until it is true; how long that took. `AssertionError` if it does not come true."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within, f"not within {within:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - begun


def all_processes() -> list[int]:
    """The ids of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def session_of(pid: int) -> int | None:
    """The session that a live process belongs to; None for one that is gone, or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[3])


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    return session_of(pid) is not None


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
