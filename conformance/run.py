#!/usr/bin/env python3
"""Runs official RocketMQ clients against a real three-process Flotilla cluster that it starts itself.

  python3 conformance/run.py --flotilla target/release/flotilla            # the Python client of PyPI
  python3 conformance/run.py --flotilla target/release/flotilla --kit DIR  # also a kit of scenario programs

What it does: a namesrv and three brokers (own processes, ports found free, data in a temporary folder);
topics and groups made by `flotilla admin`; the official Python client's round trip against every replica
in turn, the leader and both followers; then kill -9 of all four processes, a restart, and the check that
topics, groups and messages are still there; then the round trip again.

The Python client is installed by pip into target/conformance/venv, pinned in conformance/python/requirements.txt.
With --kit, a folder with python/conformance.py and node/conformance.js is driven too: all scenarios of --scenarios asked
of the leader, in simple and in push mode, normal asked of a follower, and last the Python client's failover: it sends while the
leader is killed and comes back, and every message that was acknowledged must arrive. Each client and mode has a cluster of its
own, and they run beside each other: most of their time is waiting. The last line is "conformance: N passed, N failed"; the exit code is 1 if anything failed.
"""
import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
READY_SECONDS = 30


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """A namesrv and three brokers as processes of ours; ended by pid, data removed at the end."""

    def __init__(self, flotilla):
        self.flotilla = str(flotilla)
        self.folder = Path(tempfile.mkdtemp(prefix="flotilla-conformance-"))
        ports = free_ports(7)
        self.namesrv = f"127.0.0.1:{ports[0]}"
        self.clients = [f"127.0.0.1:{port}" for port in ports[1:4]]
        self.peers = [f"127.0.0.1:{port}" for port in ports[4:7]]
        self.processes = []
        self.brokers = {}

    def start(self):
        self.spawn("namesrv", ["namesrv", "--listen", self.namesrv])
        replicas = "".join(
            f'\n[[replicas]]\nnode = {i + 1}\nclient = "{self.clients[i]}"\npeer = "{self.peers[i]}"\n' for i in range(3)
        )
        for i in range(3):
            config = self.folder / f"broker-{i + 1}.toml"
            config.write_text(
                f'node = {i + 1}\ndata_dir = "{self.folder}/broker-{i + 1}"\n'
                f'client_listen = "{self.clients[i]}"\npeer_listen = "{self.peers[i]}"\n'
                f'namesrv = ["{self.namesrv}"]\nsegment_bytes = 33554432\n{replicas}'
            )
            self.start_broker(i + 1)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            done = self.run("admin", "--namesrv", self.namesrv, "cluster", "status", "--json")
            if done.returncode == 0 and self.leader():
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"cluster not ready within {READY_SECONDS} s: {done.stdout}{done.stderr}\n{self.logs()}")
            time.sleep(0.2)

    def start_broker(self, number):
        self.brokers[number] = self.spawn(f"broker-{number}", ["broker", "--config", str(self.folder / f"broker-{number}.toml")])

    def kill_broker(self, number):
        process = self.brokers.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes.remove(process)

    def spawn(self, name, arguments):
        log = open(self.folder / f"{name}.log", "ab")
        process = subprocess.Popen([self.flotilla, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def run(self, *arguments):
        return subprocess.run([self.flotilla, *arguments], capture_output=True, text=True, timeout=60)

    def admin(self, *arguments):
        done = self.run("admin", "--namesrv", self.namesrv, *arguments)
        if done.returncode != 0:
            raise SystemExit(f"flotilla admin {' '.join(arguments)}: {done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def leader(self):
        """The leader's client address, None while there is none."""
        done = self.run("admin", "--namesrv", self.namesrv, "cluster", "status", "--json")
        if done.returncode != 0:
            return None
        for replica in json.loads(done.stdout):
            if replica.get("can_write"):
                return self.clients[int(replica["node"]) - 1]
        return None

    def kill_all(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes = []

    def logs(self):
        parts = []
        for log in sorted(self.folder.glob("*.log")):
            parts.append(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        return "\n".join(parts)

    def end(self, keep):
        self.kill_all()
        if keep:
            print(f"data and logs kept in {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


class Results:
    def __init__(self):
        self.passed = self.failed = 0
        self.lock = threading.Lock()

    def add(self, name, ok, detail=""):
        with self.lock:
            self.passed += ok
            self.failed += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {name}  {detail}".rstrip(), flush=True)

    def program(self, name, command, limit_seconds):
        started = time.monotonic()
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=limit_seconds)
            last = (done.stdout.strip().splitlines() or ["{}"])[-1]
            ok, detail = done.returncode == 0, "" if done.returncode == 0 else last[:400]
        except subprocess.TimeoutExpired:
            ok, detail = False, f"no end within {limit_seconds} s"
        self.add(name, ok, f"{time.monotonic() - started:.1f} s {detail}")


def python_client():
    """The interpreter of a virtual environment that has the official client."""
    venv = ROOT / "target" / "conformance" / "venv"
    python = venv / "bin" / "python"
    wanted = (HERE / "python" / "requirements.txt").read_text()
    stamp = venv / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "python" / "requirements.txt")], check=True)
        stamp.write_text(wanted)
    return str(python)


def make_kit_names(cluster, kit):
    names = json.loads((kit / "names.json").read_text())
    for topic in names["topics"]:
        cluster.admin("topic", "create", topic["topic"], "--type", topic["message_type"], "--queues", str(topic["queues"]))
    for group in names["groups"]:
        order = ["--order"] if group.get("order") else []
        deliveries = ["--max-deliveries", str(group["max_deliveries"])] if "max_deliveries" in group else []
        cluster.admin("group", "create", group["group"], *order, *deliveries)


def node_client(kit):
    """The kit's Node program with its packages, in a copy of our own; None where there is no npm."""
    if not shutil.which("npm"):
        return None
    copy = ROOT / "target" / "conformance" / "node"
    if not (copy / "node_modules").exists():
        shutil.copytree(kit / "node", copy, dirs_exist_ok=True)
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    return str(copy / "conformance.js")


# Not in push mode: there is no such call there.
SIMPLE_ONLY = ("change-invisible",)


def drive_failover(results, cluster, command):
    """Sends for 30 s, kills the leader after 8 s, starts it again after 18 s; then looks for all that was acknowledged."""
    everybody = ";".join(cluster.clients)
    ids = cluster.folder / "failover-ids.txt"
    results.program("python failover: prime", [*command, "prime", "--endpoint", everybody], 120)
    sender = [*command, "failover", "--endpoint", everybody, "--seconds", "30", "--ids-file", str(ids), "--max-gap-ms", "5000"]
    sending = subprocess.Popen(sender, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(8)
    number = cluster.clients.index(cluster.leader()) + 1
    cluster.kill_broker(number)
    time.sleep(10)
    cluster.start_broker(number)
    try:
        out, _ = sending.communicate(timeout=150)
        told = json.loads((out.strip().splitlines() or ["{}"])[-1])
    except (subprocess.TimeoutExpired, ValueError):
        sending.kill()
        told = {}
    detail = f"acked {told.get('acked')}, errors {told.get('errors')}, longest gap {told.get('longest_gap_ms')} ms"
    results.add("python failover: leader killed and back", bool(told.get("ok")), detail)
    verify = [*command, "failover-verify", "--endpoint", everybody, "--ids-file", str(ids), "--timeout", "120"]
    results.program("python failover-verify", verify, 240)


def drive_simple(results, cluster, client, command, scenarios):
    leader = cluster.leader()
    follower = next(address for address in cluster.clients if address != leader)
    results.program(f"{client} normal, follower asked", [*command, "normal", "--endpoint", follower], 180)
    for scenario in scenarios:
        if client == "rust" and scenario in ("change-invisible", "recall"):
            continue  # that client has no such call
        results.program(f"{client} {scenario}, leader asked", [*command, scenario, "--endpoint", leader], 180)
    if client == "python":
        drive_failover(results, cluster, command)


def drive_push(results, cluster, client, command, scenarios):
    for scenario in scenarios:
        if scenario not in SIMPLE_ONLY:
            pushed = [*command, scenario, "--endpoint", cluster.leader(), "--mode", "push"]
            results.program(f"{client} {scenario} in push mode, leader asked", pushed, 240)


def drive_kit(options, results, python):
    """Each client and mode on a cluster of its own, all beside each other."""
    kit = options.kit
    clients = [("python", [python, str(kit / "python" / "conformance.py")])]
    node = node_client(kit)
    if node:
        clients.append(("node", ["node", node]))
    else:
        print("skip node: there is no npm to install its client with", flush=True)
    if options.kit_rust:
        clients.append(("rust", [options.kit_rust]))
    lanes = [(drive_simple, *client) for client in clients] + [(drive_push, *client) for client in clients if client[0] != "rust"]

    def run_lane(lane):
        drive, client, command = lane
        cluster = Cluster(options.flotilla.resolve())
        failed_before = results.failed
        try:
            cluster.start()
            make_kit_names(cluster, kit)
            drive(results, cluster, client, command, options.scenarios.split(","))
        except (SystemExit, Exception) as error:
            results.add(f"{client} {drive.__name__}", False, str(error)[-2000:])
        finally:
            cluster.end(options.keep or results.failed > failed_before)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(run_lane, lanes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flotilla", type=Path, default=ROOT / "target" / "release" / "flotilla", help="the binary to test")
    parser.add_argument("--kit", type=Path, help="a folder of scenario programs to drive too")
    parser.add_argument("--scenarios", default="normal,fifo,delay,transaction,tag-filter,sql-filter,retry,change-invisible,recall",
                        help="of the kit, separated by commas")
    parser.add_argument("--kit-rust", help="the kit's Rust program, built")
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    options = parser.parse_args()
    if not options.flotilla.exists():
        raise SystemExit(f"no binary at {options.flotilla}: build it, or name one with --flotilla")
    python = python_client()
    results = Results()
    cluster = Cluster(options.flotilla.resolve())

    def round_trip(name, endpoint, messages=100):
        command = [python, str(HERE / "python" / "round_trip.py"), "--endpoint", endpoint, "--messages", str(messages), "--json"]
        results.program(name, command, 120)

    try:
        cluster.start()
        cluster.admin("topic", "create", "tour", "--queues", "4")
        cluster.admin("group", "create", "tour-readers")
        leader = cluster.leader()
        for client in cluster.clients:
            round_trip(f"python round trip, {'leader' if client == leader else 'follower'} asked", client)

        # Everything acknowledged must outlive all processes at once.
        bodies = [f"kept {i}" for i in range(500)]
        lines = cluster.folder / "lines.txt"
        lines.write_text("\n".join(bodies) + "\n")
        cluster.admin("topic", "create", "kept", "--queues", "4")
        cluster.admin("group", "create", "kept-readers")
        sent = cluster.run("send", "--namesrv", cluster.namesrv, "--topic", "kept", "--file", str(lines))
        results.add("flotilla send of 500 lines", sent.returncode == 0, sent.stderr.strip()[-200:] if sent.returncode else "")
        cluster.kill_all()
        cluster.start()
        received = cluster.run(
            "receive", "--namesrv", cluster.namesrv, "--topic", "kept", "--group", "kept-readers",
            "--max", "500", "--timeout", "10s", "--json",
        )
        found = [json.loads(line)["body"] for line in received.stdout.splitlines() if line.startswith("{")]
        results.add("all 500 messages after kill -9 of all", sorted(found) == sorted(bodies), f"{len(found)} found")
        round_trip("python round trip after the restart", cluster.clients[0])
    finally:
        cluster.end(options.keep or results.failed > 0)
    if options.kit:
        drive_kit(options, results, python)
    print(f"conformance: {results.passed} passed, {results.failed} failed")
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
