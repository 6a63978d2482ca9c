# SPDX-License-Identifier: Apache-2.0
"""`box config`: what boxd would do here, and where each value comes from."""

import json
import os
import subprocess

import pytest

from boxlib import BUILD

pytestmark = pytest.mark.rootless


def config(*args, **env):
    clean = {k: v for k, v in os.environ.items() if "__" not in k and not k.startswith(("BOX_", "LANGBOT_"))}
    command = [str(BUILD / "box"), "config", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**clean, **env}, check=False)


def explain(path, **env):
    r = config("--explain", "--json", "--config", str(path), **env)
    assert (r.returncode, r.stderr) == (0, "")
    return json.loads(r.stdout)


FLAT = """
port: 0
box:
  profile: network_basic
  shared_host_root: {root}
  allowed_host_mount_roots: []
  default_host_workspace: ''
  workspace_quota_mb: 32
"""

NESTED = """
box:
  profile: network_basic
  local:
    profile: mine
    host_root: {root}
    default_workspace: work
    allowed_mount_roots: [{root}, /tmp]
profiles:
  mine:
    extends: offline_readonly
    memory_mb: 64
    locked: [env]
audit: {{on_full: refuse, file_mb: 1}}
"""


def test_row_I04_the_flat_shape(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(FLAT.format(root=tmp_path))
    rows = explain(path)
    source = f"file {path}: box."
    assert rows["port"] == {"value": "0", "source": f"file {path}", "meaning": "TCP port; 0: no TCP listener"}
    assert (rows["box.local.profile"]["value"], rows["box.local.profile"]["source"]) == (
        "network_basic",
        f"{source}profile",
    )
    assert rows["box.local.workspace_quota_mb"]["value"] == "32"
    assert rows["box.local.default_workspace"]["value"] == f"{tmp_path}/default"
    assert rows["box.local.default_workspace"]["source"] == "derived from box.local.host_root"
    assert rows["box.local.allowed_mount_roots"]["value"] == str(tmp_path)


def test_the_nested_shape_wins_and_the_environment_over_both(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(NESTED.format(root=tmp_path))
    rows = explain(path)
    assert rows["box.local.profile"]["value"] == "mine"
    assert rows["box.local.default_workspace"]["value"] == f"{tmp_path}/work"
    assert rows["box.local.allowed_mount_roots"]["value"] == f"{tmp_path}, /tmp"
    assert rows["audit.on_full"]["value"] == "refuse"
    rows = explain(path, BOX__PROFILE="default", BOX__LOCAL__ALLOWED_MOUNT_ROOTS="/srv", BOX_MAX_SESSIONS="3")
    assert rows["box.local.profile"]["source"] == "environment BOX__PROFILE"
    assert rows["box.local.allowed_mount_roots"]["value"] == "/srv"
    assert rows["max_sessions"] == {
        "value": "3",
        "source": "environment BOX_MAX_SESSIONS",
        "meaning": "Sessions at a time",
    }


def test_row_T11_roots_are_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "box.yaml"
    path.write_text(FLAT.format(root=tmp_path / "link"))
    rows = explain(path)
    assert rows["box.local.host_root"]["value"] == f"{tmp_path}/real"
    assert rows["box.local.default_workspace"]["value"] == f"{tmp_path}/real/default"
    assert rows["box.local.allowed_mount_roots"]["value"] == f"{tmp_path}/real"


def test_a_table_for_people(tmp_path):
    r = config()
    assert r.returncode == 0
    lines = r.stdout.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE"]
    assert ["box.local.profile", "default"] in [line.split() for line in lines]
    r = config("--explain", BOX__LOCAL__PROFILE="offline_readonly")
    assert r.stdout.splitlines()[0].split() == ["SETTING", "VALUE", "SOURCE"]
    assert "offline_readonly" in r.stdout and "environment BOX__LOCAL__PROFILE" in r.stdout


MISTAKES = [
    (
        "box: {profile: x}",
        {},
        "unknown box profile 'x', available profiles: default, network_basic, network_extended, offline, offline_readonly "
        "(box.local.profile from file box.yaml: box.profile)",
    ),
    ("box: {profil: x}", {}, "box.yaml: unknown setting 'box.profil'"),
    (
        "",
        {"BOX__LOCAL__WORKSPACE_QUOTA_MB": "-1"},
        "workspace_quota_mb must be greater than or equal to 0 "
        "(box.local.workspace_quota_mb from environment BOX__LOCAL__WORKSPACE_QUOTA_MB)",
    ),
    ("profiles: {default: {}}", {}, "box.yaml: profile 'default': it is built in"),
    ("box: {a: &x 1}", {}, "box.yaml line 1: anchors are not allowed"),
    (
        "box: {local: {allowed_mount_roots: [/]}}",
        {},
        "box.local.allowed_mount_roots (from file box.yaml: box.local.allowed_mount_roots): "
        "the whole file system cannot be allowed",
    ),
]


@pytest.mark.parametrize("text, env, message", MISTAKES)
def test_a_mistake_names_the_setting_and_its_source(tmp_path, monkeypatch, text, env, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box.yaml").write_text(text)
    r = config("--config", "box.yaml", **env)
    assert (r.returncode, r.stdout, r.stderr) == (125, "", f"box: {message}\n")


def test_tokens_are_checked_and_never_shown(tmp_path):
    token = "t" * 40
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens:\n- {{name: ci, token: {token}, tools: [exec], profiles: [default]}}\n")
    path.chmod(0o600)
    r = config(BOX_TOKENS_FILE=str(path))
    assert r.returncode == 0
    assert token not in r.stdout
    path.write_text(f"tokens:\n- {{name: ci, token: {token}, tols: [exec]}}\n")
    r = config(BOX_TOKENS_FILE=str(path))
    assert r.returncode == 125
    assert r.stderr == f"box: tokens_file '{path}': tokens.0.tols: Extra inputs are not permitted\n"
    path.chmod(0o644)
    r = config(BOX_TOKENS_FILE=str(path))
    assert r.stderr == f"box: tokens_file '{path}' must be a file that others cannot use (chmod 600)\n"
