# SPDX-License-Identifier: Apache-2.0
"""Reads a compose file and does what it says with `docker run`.

Debian has no Compose that knows all of its keys: that of bookworm neither has `cgroup` nor `systempaths=unconfined`. A key
that this reader does not know is an error, so that nothing of a file stays untried."""

import contextlib
import json
import re
import subprocess
import time

import yaml

VARIABLE = re.compile(r"\$\{(\w+)(?::\?[^}]*)?\}")
HEALTHY_S = 180
GATEWAY = "172.31.250.1"  # of the host, as containers know it: host-gateway


class Failed(Exception):
    """What docker said."""


def docker(engine, *args, check=True, **kwargs):
    done = subprocess.run(["docker", "--host", f"unix://{engine.socket}", *args], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **kwargs)
    if check and done.returncode != 0:
        raise Failed(f"docker {' '.join(args[:2])}: {done.stdout}")
    return done.stdout


def health_flags(check):
    flags = {"interval": "--health-interval", "timeout": "--health-timeout", "retries": "--health-retries",
             "start_period": "--health-start-period"}
    assert check["test"][0] == "CMD", "the reader knows commands alone"
    out = ["--health-cmd", " ".join(check["test"][1:])]
    for key, value in check.items():
        if key != "test":
            out.append(f"{flags[key]}={value}")
    return out


# What each key of a service becomes; `ports` are for people, and tests reach containers by their addresses.
KEYS = {
    "image": lambda v: [], "command": lambda v: [], "build": lambda v: [], "depends_on": lambda v: [],
    "ports": lambda v: [], "networks": lambda v: [],
    "container_name": lambda v: ["--name", v],
    "restart": lambda v: ["--restart", v],
    "read_only": lambda v: ["--read-only"] if v else [],
    "tmpfs": lambda v: [f"--tmpfs={path}" for path in v],
    "cap_drop": lambda v: [f"--cap-drop={cap}" for cap in v],
    "cap_add": lambda v: [f"--cap-add={cap}" for cap in v],
    "security_opt": lambda v: [f"--security-opt={option}" for option in v],
    "cgroup": lambda v: [f"--cgroupns={v}"],
    "devices": lambda v: [f"--device={device}" for device in v],
    "device_cgroup_rules": lambda v: [f"--device-cgroup-rule={rule}" for rule in v],
    "extra_hosts": lambda v: [f"--add-host={host}" for host in v],
    "healthcheck": health_flags,
    "environment": lambda v: [f"--env={name}={value}" for name, value in v.items()],
}


class Project:
    """The services of one compose file, under names of their own."""

    def __init__(self, engine, path, place, settings, extra):
        """`place` is the directory that the file lies in, `extra` has more arguments of `docker run` by service."""
        self.engine, self.place, self.extra, self.started = engine, place, extra, []

        def value(match):
            if not settings.get(match.group(1)):
                raise Failed(f"{match.group(1)} is not set")
            return settings[match.group(1)]

        self.file = yaml.safe_load(VARIABLE.sub(value, path.read_text()))
        assert set(self.file) <= {"services", "networks", "volumes"}, self.file.keys()
        self.networks = list(self.file.get("networks") or {})

    def volume(self, text):
        source, target = text.split(":")
        if source.startswith("./"):
            source = str(self.place / source[2:])
            (self.place / source).mkdir(parents=True, exist_ok=True)
        return f"--volume={source}:{target}"

    def up(self, *services):
        for name in self.networks:
            if name not in docker(self.engine, "network", "ls", "--format", "{{.Name}}").split():
                docker(self.engine, "network", "create", "--driver", self.file["networks"][name].get("driver", "bridge"), name)
        for name in services:
            self.run(name, self.file["services"][name])

    def run(self, name, service):
        for other, how in (service.get("depends_on") or {}).items():
            assert how == {"condition": "service_healthy"}, how
            self.healthy(other)
        [network] = service["networks"]
        docker(self.engine, "run", "--detach", f"--network={network}", f"--network-alias={name}", *self.flags(service),
               *self.extra.get(name, ()), service["image"], *service.get("command", ()))
        self.started.append(name)

    def flags(self, service):
        flags = [flag for key, value in service.items() if key != "volumes" for flag in KEYS[key](value)]
        return flags + [self.volume(text) for text in service.get("volumes", ())]

    def state(self, name):
        return json.loads(docker(self.engine, "inspect", name))[0]

    def healthy(self, name):
        deadline = time.monotonic() + HEALTHY_S
        while True:
            state = self.state(name)["State"]
            if state.get("Health", {}).get("Status") == "healthy":
                return
            if time.monotonic() > deadline or not state["Running"]:
                raise Failed(f"{name} is not healthy: {json.dumps(state)}\n{self.logs(name)}")
            time.sleep(0.2)

    def address(self, name):
        [network] = self.state(name)["NetworkSettings"]["Networks"].values()
        return network["IPAddress"]

    def logs(self, name):
        return docker(self.engine, "logs", "--tail", "400", name, check=False)

    def down(self):
        for name in self.started:
            docker(self.engine, "rm", "--force", "--volumes", name, check=False)
        for name in self.networks:
            with contextlib.suppress(Failed):
                docker(self.engine, "network", "rm", name)
