# SPDX-License-Identifier: Apache-2.0
"""The skill store: what clients ask for and the words they get."""

import os
import re

import pytest

from fetchlib import JobError, Store, skill_md

pytestmark = pytest.mark.rootless


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, make="tenants/ws-0123456789abcdef01234567")


def refused(store, op, sentence, kind=None, **data):
    with pytest.raises(JobError) as error:
        store.call(op, **data)
    assert str(error.value) == sentence
    assert error.value.kind == kind


def put(store, path, content):
    target = store.path / store.make / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def test_a_skill_comes_back_as_it_was_made(store):
    made = store.create("demo", display_name="Démo: x", description="line1\nline2", instructions="Do it\n")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00"
    assert re.fullmatch(stamp, made.pop("created_at")) and re.fullmatch(stamp, made.pop("updated_at"))
    assert made == {"name": "demo", "display_name": "Démo: x", "description": "line1\nline2",
                    "instructions": "Do it\n", "package_root": store.root + "/demo", "entry_file": "SKILL.md",
                    "python_project": False}
    assert list(made) == ["name", "display_name", "description", "instructions", "package_root", "entry_file",
                          "python_project"]
    assert store.call("get", name="demo")["skill"]["instructions"] == "Do it\n"
    assert store.call("get", name="other") == {"skill": None}
    assert sorted(os.listdir(store.root)) == ["demo"]
    assert os.stat(store.root + "/demo/SKILL.md").st_mode & 0o777 == 0o644


def test_the_file_is_yaml_for_others_too(store):
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    hard = "q\" b\\ t\t n\n c\x85 s\u2028 f\uffff z\ufeff \U0001f600 : # - {}"
    store.create("hard", display_name="'tis: \"x\"", description="x" + hard + "x", instructions="---\nbody")
    text = (store.path / store.make / "hard/SKILL.md").read_text()
    block = text.split("---\n")[1]
    assert yaml.safe_load(block) == {"name": "hard", "display_name": "'tis: \"x\"", "description": "x" + hard + "x"}
    read = store.call("get", name="hard")["skill"]
    assert (read["description"], read["instructions"]) == ("x" + hard + "x", "---\nbody")


@pytest.mark.parametrize("name, sentence", [
    ("", "Skill name is required"),
    ("   ", "Skill name is required"),
    (None, "Skill name is required"),
    ("a b", "Skill name can only contain letters, numbers, hyphens and underscores"),
    ("../x", "Skill name can only contain letters, numbers, hyphens and underscores"),
    ("--_", "Skill name can only contain letters, numbers, hyphens and underscores"),
    ("x" * 65, "Skill name cannot exceed 64 characters"),
    ("ä" * 65, "Skill name cannot exceed 64 characters"),
])
def test_names(store, name, sentence):
    refused(store, "create", sentence, skill={"name": name})
    assert store.names() == []


def test_names_of_any_script(store):
    for name in ("日本語", "Ω-2_b", "ä" * 64):
        assert store.create(name)["name"] == name


def test_create_refuses(store):
    store.create("demo")
    refused(store, "create", 'Skill with name "demo" already exists', skill={"name": "demo"})
    refused(store, "create", "'skill'", "KeyError")
    refused(store, "create", "skill must be an object", skill=[])
    outside = "package_root must stay within the Workspace skill root"
    for path in ("/etc", "relative", store.root + "/../..", str(store.path), store.root + "x"):
        refused(store, "create", outside, skill={"name": "new", "package_root": path})
    missing = store.root + "/missing"
    refused(store, "create", f"Directory does not exist: {missing}", skill={"name": "new", "package_root": missing})
    os.mkdir(store.root + "/bare")
    refused(store, "create", f"No SKILL.md found in {store.root}/bare",
            skill={"name": "new", "package_root": store.root + "/bare"})
    os.symlink("/etc", store.root + "/link")
    refused(store, "create", f"Directory does not exist: {store.root}/link",
            skill={"name": "new", "package_root": store.root + "/link"})
    put(store, "taken/SKILL.md", skill_md("another"))
    refused(store, "create", f"Skill directory already exists: {store.root}/taken", skill={"name": "taken"})
    assert sorted(store.names()) == ["another", "demo"]


def test_create_imports_in_place(store):
    put(store, "up/pack/SKILL.md", skill_md("old", description="kept", display_name="Old"))
    put(store, "up/pack/setup.py", b"")
    made = store.create("fresh", package_root=store.root + "/up/pack/", description="  ", display_name="New")
    assert (made["name"], made["display_name"], made["description"]) == ("fresh", "New", "kept")
    assert made["package_root"] == store.root + "/up/pack" and made["python_project"]
    assert made["instructions"] == "Do it.\n"
    assert store.names() == ["fresh"]


def test_create_repairs_a_directory_without_a_valid_package(store):
    put(store, "mine/data.txt", b"kept")
    put(store, "broken/SKILL.md", b"---\na: [\n---\n")
    store.create("mine")
    store.create("broken", instructions="now good")
    assert (store.path / store.make / "mine/data.txt").read_bytes() == b"kept"
    assert store.call("get", name="broken")["skill"]["instructions"] == "now good"


def test_update(store):
    store.create("demo", display_name="D", description="d", instructions="i")
    new = store.call("update", name="demo", skill={"description": "e"})["skill"]
    assert (new["display_name"], new["description"], new["instructions"]) == ("D", "e", "i")
    new = store.call("update", name="demo", skill={"name": "demo", "display_name": "", "instructions": "j",
                                                   "package_root": store.root + "/demo"})["skill"]
    assert (new["display_name"], new["description"], new["instructions"]) == ("demo", "e", "j")
    refused(store, "update", 'Skill "no" not found', name="no", skill={})
    refused(store, "update", "'name'", "KeyError", skill={})
    refused(store, "update", "'skill'", "KeyError", name="demo")
    refused(store, "update", "Renaming skills is not supported", name="demo", skill={"name": "other"})
    refused(store, "update", "Updating package_root is not supported; recreate the skill to import a different package",
            name="demo", skill={"package_root": "/elsewhere"})


def test_update_writes_the_preferred_entry(store):
    put(store, "low/skill.md", skill_md("low"))
    assert store.call("get", name="low")["skill"]["entry_file"] == "skill.md"
    assert store.call("update", name="low", skill={"description": "x"})["skill"]["entry_file"] == "SKILL.md"


def test_an_entry_file_has_a_limit(store):
    limit = "Skill entry file SKILL.md exceeds the 1048576-byte limit"
    refused(store, "create", limit, skill={"name": "big", "instructions": "x" * (1 << 20)})
    assert store.names() == []
    fits = (1 << 20) - len('---\nname: "big"\n---\n\n')
    assert len(store.create("big", instructions="x" * fits)["instructions"]) == fits
    put(store, "other/SKILL.md", b"x" * ((1 << 20) + 1))
    refused(store, "scan", limit, path=store.root + "/other")
    put(store, "other/SKILL.md", b"\xff")
    refused(store, "scan", "Skill entry file SKILL.md is not valid UTF-8 text", path=store.root + "/other")
    assert store.names() == ["big"]


def test_delete_takes_the_first_level(store):
    put(store, "a/b/pack/SKILL.md", skill_md("deep"))
    put(store, "a/other.txt", b"")
    assert store.call("delete", name="deep") == {"deleted": "deep"}
    assert os.listdir(store.root) == []
    refused(store, "delete", 'Skill "deep" not found', name="deep")
    refused(store, "delete", "'name'", "KeyError")
    put(store, "SKILL.md", skill_md("top"))
    refused(store, "delete", "Only managed skills under the Box skills root can be deleted", name="top")


def test_scan(store):
    put(store, "one/x/pack/SKILL.md", skill_md("scanned"))
    assert store.call("scan", path=store.root + "/one")["name"] == "scanned"
    put(store, "one/a/SKILL.md", skill_md("second"))
    one = store.root + "/one"
    refused(store, "scan", f"Multiple skill directories found in {one}. Please choose a more specific path: "
            f"{one}/a, {one}/x/pack", path=one)
    os.makedirs(store.root + "/deep/1/2/3")
    put(store, "deep/1/2/3/SKILL.md", skill_md("toodeep"))
    deep = store.root + "/deep"
    refused(store, "scan", f"No SKILL.md found in {deep} or its subdirectories (max depth: 2)", path=deep)
    refused(store, "scan", f"Directory does not exist: {store.root}/no", path=store.root + "/no")
    for path in ("/", "/etc", store.root + "/..", "one"):
        refused(store, "scan", "scan path must stay within the Workspace skill root", path=path)
    refused(store, "scan", "'path'", "KeyError")


def test_discovery(store):
    for depth, name in ((6, "in"), (7, "out")):
        put(store, "/".join(f"{name}{i}" for i in range(depth)) + "/SKILL.md", skill_md(name))
    put(store, "bad-name/SKILL.md", skill_md("a b"))
    put(store, "nested/SKILL.md", skill_md("outer"))
    put(store, "nested/inner/SKILL.md", skill_md("inner"))
    os.symlink(store.root + "/nested", store.root + "/zz-link")
    os.mkdir(store.root + "/entry-link")
    os.symlink("/etc/passwd", store.root + "/entry-link/SKILL.md")
    os.mkdir(store.root + "/entry-fifo")
    os.mkfifo(store.root + "/entry-fifo/SKILL.md")
    assert sorted(store.names()) == ["in", "outer"]


def test_list_shows_the_latest_first(store):
    for age, name in ((3, "c"), (1, "a"), (2, "b")):
        entry = put(store, f"{name}/SKILL.md", skill_md(name))
        os.utime(entry, (1_700_000_000 - age, 1_700_000_000 - age))
    assert store.names() == ["a", "b", "c"]
    assert store.call("get", name="a")["skill"]["updated_at"] == "2023-11-14T22:13:19+00:00"


def test_list_limits(store):
    root = store.path / store.make
    os.makedirs(root / "wide")
    for i in range(10000):
        (root / "wide" / str(i)).touch()
    refused(store, "list", "Skill discovery exceeded the configured entry limit")
    refused(store, "list_files", "Skill discovery exceeded the configured entry limit", name="x")
    (root / "wide/0").unlink()
    assert store.names() == []
    put(store, "wide/SKILL.md", skill_md("wide"))
    assert store.call("list_files", name="wide")["truncated"]
    put(store, "wide/one-more", b"")
    refused(store, "list_files", "Skill directory exceeds the configured entry limit", name="wide")
    for i in range(1000):
        put(store, f"p{i}/SKILL.md", skill_md(f"p{i}"))
    refused(store, "list", "Skill discovery exceeded the configured package limit")


def test_list_text_limit(store):
    for i in range(16):
        put(store, f"p{i}/SKILL.md", b"x" * (1 << 20))
    assert len(store.names()) == 16
    put(store, "one-more/SKILL.md", b"x")
    refused(store, "list", "Skill listing exceeds the configured text limit")


def test_a_store_without_tenants_does_not_show_theirs(tmp_path):
    tenant = Store(tmp_path, make="tenants/ws-1")
    tenant.create("theirs")
    shared = Store(tmp_path, shared=True)
    shared.create("ours")
    assert shared.names() == ["ours"] and tenant.names() == ["theirs"]


def test_timestamps_no_calendar_knows(store):
    entry = put(store, "a/SKILL.md", b"x")
    os.utime(entry, (-1, -1))
    assert store.call("list")["skills"][0]["updated_at"] == "1969-12-31T23:59:59+00:00"


FRONT = [
    ("---\nname: x\n---\n\n\nbody\n", {"name": "x", "display_name": "x", "description": "", "instructions": "body\n"}),
    ("no marker\n", {"name": "dir", "display_name": "dir", "instructions": "no marker\n"}),
    ("---\nname: x\nno end\n", {"name": "dir", "instructions": "---\nname: x\nno end\n"}),
    (" ---\nname: x\n---\n", {"name": "dir"}),
    ("---  \nname: x\n ---\t\nbody", {"name": "x", "instructions": "body"}),
    ("---\n- a\n- b\n---\nbody", {"name": "dir", "instructions": "body"}),
    ("---\n---\nbody", {"name": "dir", "instructions": "body"}),
    ("---\nname: x\ndescription: >\n  folded\n  text\nlist: [1, {a: b}]\n---\n", {"description": "folded text"}),
    ("---\nname: x\ndescription: |\n  a\n  b\n---\n", {"description": "a\nb"}),
    ("---\nname: 'x'\ndisplay_name: \"\\u00e9\"\n---\n", {"display_name": "é"}),
    ("---\nname: 0x10\ndisplay_name: yes\ndescription: 1.50\n---\n",
     {"name": "16", "display_name": "True", "description": "1.5"}),
    ("---\nname: no\ndescription: ~\n---\n", {"name": "dir", "description": ""}),
    ("---\nname: \"no\"\n---\n", {"name": "no"}),
    ("---\nname: x\nname: y\n---\n", {"name": "y"}),
    ("---\nname: &a x\ndescription: *a\n---\n", {"description": "x"}),
    ("---\nname: {a: b}\ndescription: [1]\n---\n", {"name": "dir", "description": ""}),
    ("---\nnested:\n  name: inner\nname: x\n---\n", {"name": "x"}),
    ("---\r\nname: x\r\n---\r\nbody\r\n", {"name": "x", "instructions": "body\r\n"}),
    ("---\nname: x\n---", {"name": "x", "instructions": ""}),
]


@pytest.mark.parametrize("text, expected", FRONT, ids=range(len(FRONT)))
def test_front_matter(store, text, expected):
    put(store, "dir/SKILL.md", text.encode())
    skill = store.call("scan", path=store.root + "/dir")
    assert {key: skill[key] for key in expected} == expected


@pytest.mark.parametrize("block", [
    "a: [", "a: b: c", "\tx: 1", "a: *none", "a: !mine x", "a: \x01", "a: 1\n...\n--- x\nb: 2",
    "a: " + "[" * 70 + "]" * 70, "".join(f"a{i}: &a{i} x\n" for i in range(65)), "[" + "a," * 20000 + "]",
])
def test_broken_front_matter_hides_one_package_only(store, block):
    put(store, "bad/SKILL.md", f"---\n{block}\n---\n".encode())
    put(store, "good/SKILL.md", skill_md("good"))
    assert store.names() == ["good"]
    with pytest.raises(JobError, match="^SKILL.md front matter "):
        store.call("scan", path=store.root + "/bad")


def test_a_bomb_of_aliases_is_not_expanded(store):
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    put(store, "bomb/SKILL.md", ("---\nname: bomb\n" + "\n".join(lines) + "\n---\n").encode())
    assert store.names() == ["bomb"]
