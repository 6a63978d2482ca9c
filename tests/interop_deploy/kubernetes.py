# SPDX-License-Identifier: Apache-2.0
"""Reads a manifest, sees to it that its parts fit together, and runs its pods as containers of an engine.

A cluster is too large for a test. What a pod's container would have here it has, too: environment, secrets, volumes, a
read-only root, and as privileged as this host can make it. Scheduling, probes by a kubelet and network policies are not
tried."""

import json

import yaml
from compose import docker

# By their numbers, as far as every engine knows them.
CAPABILITIES = ("CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
                "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT "
                "SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP "
                "MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ").split()
NETWORK = "pods"


def taken_away():
    """Capabilities that this host lets nobody have, so that nothing on it can be quite privileged."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("CapBnd:")]
    mask = int(line.split()[1], 16)
    return [name for number, name in enumerate(CAPABILITIES) if not mask >> number & 1]


class Manifest:
    def __init__(self, path):
        self.documents = [d for d in yaml.safe_load_all(path.read_text()) if d]
        self.by = {(d["kind"], d["metadata"]["name"]): d for d in self.documents}

    def pod(self, name):
        return self.by["Deployment", name]["spec"]["template"]["spec"]

    def check(self):
        """Names that refer to something refer to something that is there."""
        kinds = {"PersistentVolumeClaim": "v1", "Service": "v1", "Deployment": "apps/v1",
                 "NetworkPolicy": "networking.k8s.io/v1"}
        for d in self.documents:
            assert d["apiVersion"] == kinds[d["kind"]] and d["metadata"]["namespace"] == "langbot", d["metadata"]
        claims = {name for kind, name in self.by if kind == "PersistentVolumeClaim"}
        deployments = [d for d in self.documents if d["kind"] == "Deployment"]
        labels = [d["spec"]["template"]["metadata"]["labels"] for d in deployments]
        ports = {}
        for d in deployments:
            assert d["spec"]["selector"]["matchLabels"] == d["spec"]["template"]["metadata"]["labels"]
            pod = d["spec"]["template"]["spec"]
            volumes = {v["name"]: v for v in pod["volumes"]}
            assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= claims
            for c in pod["containers"]:
                assert {m["name"] for m in c["volumeMounts"]} <= set(volumes)
                names = {p["name"]: p["containerPort"] for p in c["ports"]}
                ports[tuple(d["spec"]["selector"]["matchLabels"].items())] = names
                for probe in ("livenessProbe", "readinessProbe"):
                    assert c.get(probe, {"httpGet": {"port": next(iter(names))}})["httpGet"]["port"] in names
        for d in self.documents:
            if d["kind"] == "Service":
                names = ports[tuple(d["spec"]["selector"].items())]
                assert all(p["targetPort"] in names and names[p["targetPort"]] == p["port"] for p in d["spec"]["ports"])
            if d["kind"] == "NetworkPolicy":
                assert d["spec"]["podSelector"]["matchLabels"] in labels


class Pods:
    def __init__(self, engine, manifest, claims, secrets):
        self.engine, self.manifest, self.claims, self.secrets, self.started = engine, manifest, claims, secrets, []
        docker(engine, "network", "create", NETWORK)

    def environment(self, container):
        for entry in container["env"]:
            source = entry.get("valueFrom", {}).get("secretKeyRef")
            value = self.secrets[source["name"], source["key"]] if source else entry["value"]
            yield f"--env={entry['name']}={value}"

    def mounts(self, pod, container):
        volumes = {v["name"]: v for v in pod["volumes"]}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                yield f"--volume={self.claims[volume['persistentVolumeClaim']['claimName']]}:{mount['mountPath']}"
            elif volume["emptyDir"].get("medium") == "Memory":
                yield f"--tmpfs={mount['mountPath']}"
            else:
                yield f"--volume={mount['mountPath']}"

    def rights(self, container):
        context = container.get("securityContext", {})
        if context.get("readOnlyRootFilesystem"):
            yield "--read-only"
        if context.get("privileged"):
            yield from ("--cap-add=ALL", *(f"--cap-drop={name}" for name in taken_away()))
            yield from (f"--security-opt={o}=unconfined" for o in ("seccomp", "apparmor", "systempaths"))
            yield from ("--cgroupns=host", "--volume=/sys/fs/cgroup:/sys/fs/cgroup")

    def up(self, name, extra):
        pod = self.manifest.pod(name)
        [container] = pod["containers"]
        docker(self.engine, "run", "--detach", f"--name={name}", f"--network={NETWORK}", *self.environment(container),
               *self.mounts(pod, container), *self.rights(container), *extra, container["image"])
        self.started.append(name)

    def address(self, name):
        [network] = json.loads(docker(self.engine, "inspect", name))[0]["NetworkSettings"]["Networks"].values()
        return network["IPAddress"]

    def logs(self, name):
        return docker(self.engine, "logs", "--tail", "400", name, check=False)

    def down(self):
        for name in self.started:
            docker(self.engine, "rm", "--force", "--volumes", name, check=False)
        docker(self.engine, "network", "rm", NETWORK, check=False)
