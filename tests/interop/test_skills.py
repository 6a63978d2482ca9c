# SPDX-License-Identifier: Apache-2.0
"""The skill store, zip upload through the client's file transfer included."""

import io
import os
import pathlib
import stat
import zipfile

import pytest
from langbot_client import CommonAction, VERSION, errors

pytestmark = pytest.mark.needs("skills")

FIRST = VERSION == "0.4.0"


@pytest.fixture(autouse=True)
def no_skills_left(box):
    """The first protocol has one store for everybody."""
    yield
    from conftest import run

    for skill in run(box.list_skills()):
        run(box.delete_skill(skill["name"]))


def archive(files, **options):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", options.get("method", zipfile.ZIP_DEFLATED)) as z:
        for name, content in files.items():
            z.writestr(name, content)
    return data.getvalue()


def skill_md(name, description="what it does", body="Do it.\n"):
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}"


async def demo(box, name="demo", **fields):
    return await box.create_skill({"name": name, "display_name": "Démo: x", "description": "line1\nline2",
                                   "instructions": "Do it\n", **fields})


async def invalid(call, text):
    with pytest.raises(errors.BoxValidationError) as caught:
        await call
    assert text in str(caught.value)


async def test_create_get_list(box):
    assert await box.list_skills() == []
    made = await demo(box)
    told = {k: made[k] for k in ("name", "display_name", "description", "instructions", "entry_file")}
    assert told == {"name": "demo", "display_name": "Démo: x", "description": "line1\nline2",
                    "instructions": "Do it\n", "entry_file": "SKILL.md"}
    assert made["created_at"].endswith("+00:00") and made["updated_at"].endswith("+00:00")
    assert FIRST or made["python_project"] is False
    entry = pathlib.Path(made["package_root"], "SKILL.md")
    assert entry.is_relative_to(box.server.work / "skills")
    assert entry.read_text().startswith("---\n") and entry.read_text().endswith("\n---\n\nDo it\n")
    assert await box.get_skill("demo") == made
    assert await box.list_skills() == [made]
    assert await box.get_skill("none") is None


@pytest.mark.needs("tenancy")
async def test_the_store_of_a_workspace(box, other):
    made = await demo(box)
    namespace = box.physical().split("-g1-")[0]
    assert made["package_root"] == str(box.server.work / "skills" / "tenants" / namespace / "demo")
    assert await other.list_skills() == [] and await other.get_skill("demo") is None
    box.advance(2)
    assert (await box.get_skill("demo"))["name"] == "demo"  # survives the placement


async def test_update(box):
    made = await demo(box)
    changed = await box.update_skill("demo", {"description": "new", "instructions": "Again\n"})
    assert (changed["description"], changed["instructions"], changed["display_name"]) == ("new", "Again\n", "Démo: x")
    same = await box.update_skill("demo", {"name": "demo", "package_root": made["package_root"]})
    assert same["description"] == "new"
    await invalid(box.update_skill("none", {}), 'Skill "none" not found')
    await invalid(box.update_skill("demo", {"name": "other"}), "Renaming skills is not supported")
    await invalid(box.update_skill("demo", {"package_root": "/tmp"}), "Updating package_root is not supported")


async def test_delete(box):
    made = await demo(box)
    await box.delete_skill("demo")
    assert not pathlib.Path(made["package_root"]).exists()
    await invalid(box.delete_skill("demo"), 'Skill "demo" not found')


async def test_names(box):
    await demo(box)
    await invalid(demo(box), 'Skill with name "demo" already exists')
    await invalid(demo(box, ""), "Skill name is required")
    await invalid(demo(box, "a/b"), "Skill name can only contain letters, numbers, hyphens and underscores")
    await invalid(demo(box, "x" * 65), "Skill name cannot exceed 64 characters")
    assert (await demo(box, "é世-1_b"))["name"] == "é世-1_b"


async def test_newest_first(box):
    for name in ("a", "b", "c"):
        made = await demo(box, name)
        os.utime(pathlib.Path(made["package_root"], "SKILL.md"), (10**9, 1_000_000_000 + "bca".index(name)))
    assert [s["name"] for s in await box.list_skills()] == ["a", "c", "b"]


async def test_files(box):
    made = await demo(box)
    wrote = await box.write_skill_file("demo", "sub/./a é.txt", "text 世\n")
    assert wrote == {"skill": {"name": "demo"}, "path": "sub/a é.txt", "bytes_written": 9}
    assert (await box.read_skill_file("demo", "sub/a é.txt")) == {
        "skill": {"name": "demo"}, "path": "sub/a é.txt", "content": "text 世\n"}
    await box.write_skill_file("demo", ".hidden", "")
    listing = await box.list_skill_files("demo")
    assert (listing["skill"], listing["base_path"], listing["truncated"]) == ({"name": "demo"}, ".", False)
    entry_size = pathlib.Path(made["package_root"], "SKILL.md").stat().st_size
    assert listing["entries"] == [{"path": "SKILL.md", "name": "SKILL.md", "is_dir": False, "size": entry_size},
                                  {"path": "sub", "name": "sub", "is_dir": True, "size": None}]
    assert [e["path"] for e in (await box.list_skill_files("demo", "sub"))["entries"]] == ["sub/a é.txt"]
    assert [e["name"] for e in (await box.list_skill_files("demo", include_hidden=True))["entries"]] == [
        ".hidden", "SKILL.md", "sub"]
    short = await box.list_skill_files("demo", max_entries=1)
    assert len(short["entries"]) == 1 and short["truncated"] is True


async def test_files_stay_inside(box):
    made = await demo(box)
    os.symlink("/etc/hostname", pathlib.Path(made["package_root"], "link"))
    for path in ("../x", "a/../../x", "link"):
        await invalid(box.read_skill_file("demo", path), "path must stay within the skill package root")
        await invalid(box.write_skill_file("demo", path, "x"), "path must stay within the skill package root")
    await invalid(box.read_skill_file("demo", "/etc/hostname"), "path must be relative to the skill package root")
    await invalid(box.read_skill_file("demo", "none"), "Skill file not found: none")
    await invalid(box.list_skill_files("demo", "none"), "Skill directory not found: none")
    await invalid(box.list_skill_files("demo", max_entries=0), "max_entries must be a positive integer")
    await invalid(box.read_skill_file("none", "f"), 'Skill "none" not found')


@pytest.mark.needs("tenancy")
async def test_files_have_a_size(box):
    await demo(box)
    await box.write_skill_file("demo", "big", "x" * (1 << 20))
    assert len((await box.read_skill_file("demo", "big"))["content"]) == 1 << 20
    with pytest.raises(errors.BoxError):
        await box.write_skill_file("demo", "bigger", "x" * ((1 << 20) + 1))


async def test_scan(box):
    made = await demo(box)
    assert (await box.scan_skill_directory(made["package_root"]))["name"] == "demo"
    root = str(pathlib.Path(made["package_root"]).parent)
    await demo(box, "second")
    await invalid(box.scan_skill_directory(root), "Multiple skill directories found in")
    await invalid(box.scan_skill_directory(root + "/none"), "Directory does not exist")
    if not FIRST:
        await invalid(box.scan_skill_directory("/usr"), "scan path must stay within the Workspace skill root")


async def test_front_matter_of_the_wild(box):
    root = pathlib.Path((await demo(box, "anchor"))["package_root"]).parent
    texts = {
        "folded": ("---\nname: folded\ndescription: >\n  two\n  lines\nlicense: x\n---\nbody", "two lines", "body"),
        "literal": ("---\nname: literal\ndescription: |\n  a: b\n  c\nmeta:\n  k: [1, 2]\n---\n\nbody\n",
                    "a: b\nc", "body\n"),
        "quoted": ('---\nname: quoted\ndescription: "say \\"hi\\": \\u00e9"\ntags:\n  - a\n---\nx',
                   'say "hi": é', "x"),
        "bare": ("no front matter\n", "", "no front matter\n"),
    }
    for name, (content, _, _) in texts.items():
        (root / name).mkdir()
        (root / name / "SKILL.md").write_text(content)
        os.chmod(root / name, 0o777)
    found = {s["name"]: s for s in await box.list_skills()}
    assert set(found) == {"anchor", *texts}
    for name, (_, description, instructions) in texts.items():
        assert (found[name]["description"], found[name]["instructions"]) == (description, instructions)
        if os.geteuid() == 0:  # these were made by us, not by the daemon
            (root / name / "SKILL.md").chmod(0o666)


async def test_zip_preview_and_install(box):
    data = archive({"pack/SKILL.md": skill_md("zipped"), "pack/bin/run.sh": "#!/bin/sh\n", "pack/requirements.txt": ""})
    preview = await box.preview_skill_zip(data, "My Pack.zip")
    assert [(s["name"], s["source_path"]) for s in preview] == [("zipped", "")]
    assert preview[0]["package_root"].endswith("/My-Pack-upload")
    assert await box.list_skills() == []
    installed = await box.install_skill_zip(data, "My Pack.zip")
    assert [s["name"] for s in installed] == ["zipped"] and "source_path" not in installed[0]
    assert FIRST or installed[0]["python_project"] is True
    assert (await box.read_skill_file("zipped", "bin/run.sh"))["content"] == "#!/bin/sh\n"
    await invalid(box.install_skill_zip(data, "My Pack.zip"), "Skill directory already exists")


async def test_zip_with_several(box):
    data = archive({"a/SKILL.md": skill_md("one"), "b/SKILL.md": skill_md("two"), "README": "x"})
    preview = await box.preview_skill_zip(data, "set.zip", target_suffix="")
    assert [(s["name"], s["source_path"], pathlib.Path(s["package_root"]).name) for s in preview] == [
        ("one", "a", "set-a"), ("two", "b", "set-b")]
    await invalid(box.install_skill_zip(data, "set.zip"),
                  "Multiple skills found. Please choose one or more source_paths: a, b")
    await invalid(box.install_skill_zip(data, "set.zip", source_path="c"), 'Invalid source_path "c". Available: a, b')
    assert [s["name"] for s in await box.install_skill_zip(data, "set.zip", source_path="b")] == ["two"]
    assert {s["name"] for s in await box.install_skill_zip(data, "set2.zip", source_paths=["a"])} == {"one"}


async def test_zip_below_a_directory(box):
    data = archive({"x/repo/skills/a/SKILL.md": skill_md("deep")})
    assert [s["name"] for s in await box.preview_skill_zip(data, "r.zip", source_subdir="repo/skills/")] == ["deep"]
    for subdir, said in (("none", "source_subdir does not exist in the uploaded archive: none"),
                         ("../..", "source_subdir must stay within the uploaded archive")):
        await invalid(box.preview_skill_zip(data, "r.zip", source_subdir=subdir), said)


async def test_a_large_zip(box):
    """Some hundred pieces of the client's file transfer."""
    data = archive({"SKILL.md": skill_md("large"), "blob": os.urandom(3_000_000)}, method=zipfile.ZIP_STORED)
    installed = await box.install_skill_zip(data, "large.zip")
    assert pathlib.Path(installed[0]["package_root"], "blob").stat().st_size == 3_000_000


def special(name, mode):
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (mode | 0o777) << 16
    return info


async def test_zips_that_are_refused(box):
    await invalid(box.preview_skill_zip(b"", "e.zip"), "Uploaded file is empty")
    await invalid(box.preview_skill_zip(b"no zip at all", "e.zip"), "Uploaded file must be a valid .zip archive")
    await invalid(box.preview_skill_zip(archive({"README": "x"}), "e.zip"), "No SKILL.md found in")
    for name in ("../evil", "/abs/evil"):
        await invalid(box.install_skill_zip(archive({"SKILL.md": skill_md("s"), name: "x"}), "e.zip"), "unsafe path")
    assert await box.list_skills() == []


@pytest.mark.needs("tenancy")
@pytest.mark.parametrize("make, text", [
    (lambda: {f"f{i}": "" for i in range(513)}, "Archive contains too many entries (maximum 512)"),
    (lambda: {special("link", stat.S_IFLNK): "/etc/passwd"}, "Archive contains a symbolic link: link"),
    (lambda: {special("pipe", stat.S_IFIFO): ""}, "Archive contains a non-regular entry: pipe"),
    (lambda: {"a/b": "1", "a/./b": "2"}, "Archive contains a duplicate path"),
    (lambda: {"bomb": b"\0" * (1 << 20)}, "Archive entry exceeds the compression ratio limit: bomb"),
    (lambda: {"big": os.urandom(64) * (17 << 14)}, "Archive entry exceeds the uncompressed size limit: big"),
], ids=["entries", "link", "pipe", "twice", "bomb", "big"])
async def test_hostile_zips(box, make, text):
    await invalid(box.install_skill_zip(archive({"SKILL.md": skill_md("s"), **make()}), "e.zip"), text)
    assert await box.list_skills() == []


async def test_a_key_that_was_never_sent(box):
    await invalid(box.raw("PREVIEW_SKILL_ZIP", {"file_key": "0123456789abcdef-none.zip"}), "")


async def test_an_installed_skill_is_mounted(box):
    """What an agent does with it."""
    made = await demo(box)
    mounts = [{"host_path": made["package_root"], "mount_path": "/workspace/.skills/demo", "mode": "rw"}]
    result = await box.sh("tail -n 1 /workspace/.skills/demo/SKILL.md; echo x > /workspace/.skills/demo/new",
                          extra_mounts=mounts)
    assert (result.stdout, result.exit_code) == ("Do it", 0)
    assert (await box.read_skill_file("demo", "new"))["content"] == "x\n"


@pytest.mark.needs("tenancy")
@pytest.mark.parametrize("change, text", [
    ({"file_key": "../x"}, "ValueError: Invalid file transfer key"),
    ({"file_key": " x"}, "ValueError: Invalid file transfer key"),
    ({"chunk_base64": "A" * 21852}, "ValueError: File transfer chunk exceeds the protocol limit"),
    ({"chunk_base64": "!"}, "Error: Only base64 data is allowed"),
    ({"chunk_index": 1}, "ValueError: Invalid file chunk position"),
    ({"chunk_amount": True}, "ValueError: Invalid file chunk position"),
    ({"chunk_base64": None}, "KeyError: 'chunk_base64'"),
], ids=["dots", "blank", "long", "alphabet", "index", "amount", "missing"])
async def test_pieces_that_are_refused(box, change, text):
    data = {"file_key": "key.zip", "file_length": 1, "chunk_base64": "QQ==", "chunk_index": 0, "chunk_amount": 1,
            "chunk_size": 1, **change}
    data = {k: v for k, v in data.items() if v is not None}
    with pytest.raises(Exception) as caught:
        await box.handler.call_action(CommonAction.FILE_CHUNK, data)
    assert text in str(caught.value)
