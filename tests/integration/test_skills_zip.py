# SPDX-License-Identifier: Apache-2.0
"""Archives that people upload: good ones, and those made to harm (check K01)."""

import io
import json
import os
import struct
import zipfile

import pytest

from fetchlib import JobError, Store, Zip, skill_md, start

pytestmark = pytest.mark.rootless

INVALID = "Uploaded file must be a valid .zip archive"


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path, make="tenants/ws-1")
    assert made.names() == []
    return made


def tree(store):
    return sorted(os.path.relpath(os.path.join(base, name), store.root)
                  for base, dirs, files in os.walk(store.root) for name in dirs + files)


def refused(store, archive, sentence, op="install_zip", **data):
    before = tree(store)
    data.setdefault("filename", "x.zip")
    with pytest.raises(JobError) as error:
        store.call(op, archive, **data)
    assert str(error.value) == sentence
    assert tree(store) == before


def python_zip(entries, **options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def good(**more):
    return python_zip({"SKILL.md": skill_md("demo"), "run.sh": b"#!/bin/sh\n" * 50, **more})


def test_preview_and_install(store):
    archive = python_zip({"top/SKILL.md": skill_md("demo", description="d"), "top/a/b.txt": b"text"})
    preview = store.call("preview_zip", archive, filename="dir/My skill (2).v1.zip")["skills"]
    assert len(preview) == 1
    assert preview[0]["name"] == "demo" and preview[0]["source_path"] == ""
    assert preview[0]["package_root"] == store.root + "/My-skill--2--v1-upload"
    assert list(preview[0])[-1] == "source_path" and tree(store) == []
    done = store.call("install_zip", archive, filename="My skill (2).v1.zip", target_suffix="")["skills"]
    assert [(s["name"], s["package_root"]) for s in done] == [("demo", store.root + "/My-skill--2--v1")]
    assert "source_path" not in done[0]
    assert tree(store) == ["My-skill--2--v1", "My-skill--2--v1/SKILL.md", "My-skill--2--v1/a",
                           "My-skill--2--v1/a/b.txt"]
    refused(store, archive, f"Skill directory already exists: {store.root}/My-skill--2--v1",
            filename="My skill (2).v1.zip", target_suffix="")


@pytest.mark.parametrize("filename, stem", [
    ("skill.zip", "skill"), ("", "uploaded-skill"), ("...", "uploaded-skill"), (".zip", "zip"),
    ("-_-.zip", "uploaded-skill"),
    ("日本.zip", "日本"), ("a/b/../c.tar.gz", "c-tar"), ("..\\..\\x.zip", "x"), (None, "skill"),
])
def test_targets(store, filename, stem):
    name = {} if filename is None else {"filename": filename}
    preview = store.call("preview_zip", good(), target_suffix="u", **name)["skills"]
    assert preview[0]["package_root"] == f"{store.root}/{stem}-u"


def test_targets_stay_in_the_store(store):
    for suffix in ("../../x", "/x", "a" * 300):
        with pytest.raises(JobError, match="^Invalid target directory name: "):
            store.call("install_zip", good(), filename="x.zip", target_suffix=suffix)
    assert tree(store) == []


def test_a_package_without_a_name_is_called_by_its_directory(store):
    archive = python_zip({"SKILL.md": b"only text", "b": b""})
    assert store.call("preview_zip", archive)["skills"][0]["name"] == "extracted"
    assert store.call("install_zip", archive)["skills"][0]["name"] == "skill-upload"


def test_several_skills(store):
    archive = python_zip({"top/b/SKILL.md": skill_md("two"), "top/a/SKILL.md": skill_md("one"), "top/README": b""})
    preview = store.call("preview_zip", archive, filename="b.zip")["skills"]
    assert [(s["source_path"], s["package_root"]) for s in preview] == [
        ("a", store.root + "/b-a-upload"), ("b", store.root + "/b-upload")]
    refused(store, archive, "Multiple skills found. Please choose one or more source_paths: a, b")
    refused(store, archive, 'Invalid source_path "c". Available: a, b', source_paths=["a", "c"])
    refused(store, archive, 'Invalid source_path "". Available: a, b', source_paths=[""])
    installed = store.call("install_zip", archive, filename="b.zip", source_paths=["\\b/", "b"], source_path=" /a ")
    assert [s["name"] for s in installed["skills"]] == ["two", "one"]
    assert sorted(store.names()) == ["one", "two"]


def test_install_is_all_or_nothing(store):
    archive = python_zip({"a/SKILL.md": skill_md("good"), "b/SKILL.md": b"no name", "c": b""})
    # The directory's name would become the skill's, and it is too long for one.
    long = "n" * 70 + ".zip"
    refused(store, archive, "Skill name cannot exceed 64 characters", filename=long, source_paths=["a", "b"])
    clash = python_zip({"a/x/SKILL.md": skill_md("one"), "b/x/SKILL.md": skill_md("two")})
    refused(store, clash, f"Duplicate target directory selected: {store.root}/x-upload",
            source_paths=["a/x", "b/x"])
    bad = python_zip({"a/SKILL.md": skill_md("good"), "b/SKILL.md": skill_md("not a name")})
    refused(store, bad, "Skill name can only contain letters, numbers, hyphens and underscores")


def test_source_subdir(store):
    archive = python_zip({"top/x/y/SKILL.md": skill_md("demo"), "top/z": b""})
    for subdir in ("x", "/x/", "\\x\\", " x/y "):
        assert store.call("preview_zip", archive, source_subdir=subdir)["skills"][0]["name"] == "demo"
    for subdir in ("..", "x/../../..", "..foo"):
        refused(store, archive, "source_subdir must stay within the uploaded archive", source_subdir=subdir)
    refused(store, archive, "source_subdir does not exist in the uploaded archive: no", source_subdir="/no/")
    refused(store, archive, "source_subdir does not exist in the uploaded archive: z", source_subdir="z")


def test_nothing_in_it(store):
    with pytest.raises(JobError, match=r"^No SKILL.md found in /.*/extracted or its subdirectories \(max depth: 2\)$"):
        store.call("install_zip", python_zip({"a": b"", "b": b""}))
    with pytest.raises(JobError, match="^No SKILL.md found in "):
        store.call("install_zip", python_zip({}))
    assert tree(store) == []


def test_modes(store):
    archive = Zip().add("SKILL.md", skill_md()).add("d/", mode=0o40700).add("run", b"x", mode=0o100701)
    archive.add("suid", b"x", mode=0o104755).add("plain", b"x", mode=0o100000).add("none", b"x", mode=0)
    store.call("install_zip", archive.bytes(), filename="m.zip", target_suffix="")
    mode = {name: os.stat(f"{store.root}/m/{name}").st_mode & 0o7777 for name in os.listdir(store.root + "/m")}
    assert mode == {"SKILL.md": 0o644, "d": 0o755, "run": 0o755, "suid": 0o755, "plain": 0o644, "none": 0o644}
    assert os.stat(store.root + "/m").st_mode & 0o777 == 0o755


def test_uploads_that_are_no_archives(store):
    refused(store, b"", "Uploaded file is empty")
    for data in (b"x", b"PK\x05\x06", b"PK\x03\x04" + bytes(100), os.urandom(5000)):
        refused(store, data, INVALID)
        refused(store, data, INVALID, op="preview_zip")
    big = Zip().add("SKILL.md", skill_md()).add("f", bytes(16 << 20)).add("g", bytes(5 << 20)).bytes()
    refused(store, big, "Uploaded archive exceeds the compressed size limit (20971520 bytes)")


@pytest.mark.parametrize("name", [
    "/etc/passwd", "../x", "a/../../x", "..", ".", "./", "a/..", "C:\\x", "c:x", "C:/x", "\\\\server\\x", "..\\x",
    "\\x", "a\\..\\..\\x", "n" * 256, "d/" * 1100 + "f",
])
def test_unsafe_paths(store, name):
    archive = Zip().add("SKILL.md", skill_md()).add(name, b"").bytes()
    refused(store, archive, f"Archive contains an unsafe path: {name}")


def test_names_that_no_path_can_have(store):
    for name in (b"", b"a\0b", b"\0"):
        refused(store, Zip().add("SKILL.md", skill_md()).add(name, b"").bytes(),
                "Archive contains an unsafe empty or NUL path")
    refused(store, Zip().add("SKILL.md", skill_md()).add(b"\xff\xfe", b"").bytes(), INVALID)
    old = Zip().add("SKILL.md", skill_md(), flags=0).add(b"\x81ber", b"", flags=0).bytes()  # code page 437
    store.call("install_zip", old, filename="o.zip", target_suffix="")
    assert "über" in os.listdir(store.root + "/o")


def test_a_message_does_not_choose_the_error_class(store):
    name = "../BoxAdmissionError: x"
    refused(store, Zip().add(name, b"").bytes(), "Archive contains an unsafe path: ../BoxAdmissionError; x")


@pytest.mark.parametrize("first, second", [
    ("a", "a"), ("a", "./a"), ("a", "b/../a"), ("a/b", "a\\b"), ("d/", "d"), ("a", "a/b"), ("a/b", "a"),
    ("a", "a/b/c"),
])
def test_two_entries_for_one_place(store, first, second):
    archive = Zip().add("SKILL.md", skill_md())
    for name in (first, second):
        archive.add(name, b"", mode=0)
    refused(store, archive.bytes(), f"Archive contains a duplicate path: {second}")


@pytest.mark.parametrize("mode, sentence", [
    (0o120777, "Archive contains a symbolic link: evil"),
    (0o010644, "Archive contains a non-regular entry: evil"),
    (0o020644, "Archive contains a non-regular entry: evil"),
    (0o060644, "Archive contains a non-regular entry: evil"),
    (0o140644, "Archive contains a non-regular entry: evil"),
    (0o040755, "Archive contains a non-regular entry: evil"),
])
def test_special_files(store, mode, sentence):
    archive = Zip().add("SKILL.md", skill_md()).add("evil", b"/etc/passwd", mode=mode)
    refused(store, archive.bytes(), sentence)


def test_a_link_and_then_a_write_through_it(store, tmp_path):
    archive = Zip().add("x", str(tmp_path).encode(), mode=0o120777).add("x/evil", b"x").bytes()
    refused(store, archive, "Archive contains a symbolic link: x")
    assert not (tmp_path / "evil").exists()


def test_sizes(store):
    start = Zip().add("SKILL.md", skill_md())
    refused(store, Zip().add("d/", b"x", mode=0).bytes(), "Archive directory has unexpected content: d/")
    big = Zip().add("SKILL.md", skill_md()).add("big", bytes((16 << 20) + 1), deflate=True).bytes()
    refused(store, big, "Archive entry exceeds the uncompressed size limit: big")
    refused(store, start.add("bomb", bytes(1 << 20), deflate=True).bytes(),
            "Archive entry exceeds the compression ratio limit: bomb")
    empty = Zip().add("SKILL.md", skill_md()).add("e", b"", size=5, compressed=0).bytes()
    refused(store, empty, "Archive entry exceeds the compression ratio limit: e")


def ratio(size, percent):
    """Content of which deflate leaves about this part."""
    noise = size * percent // 100
    return os.urandom(noise) + bytes(size - noise)


def test_totals(store):
    archive = Zip().add("SKILL.md", skill_md())
    for i in range(5):
        archive.add(f"f{i}", ratio(14 << 20, 3), deflate=True)
    refused(store, archive.bytes(), "Archive exceeds the total uncompressed size limit")
    lie = Zip().add("SKILL.md", skill_md()).add("a", bytes(1 << 20), size=64 << 20)
    refused(store, lie.bytes(), "Archive entry exceeds the uncompressed size limit: a")


def test_too_many_entries(store):
    archive = Zip().add("SKILL.md", skill_md())
    for i in range(511):
        archive.add(f"f{i}")
    assert len(store.call("install_zip", archive.bytes(), filename="ok.zip")["skills"]) == 1
    refused(store, archive.add("one-more").bytes(), "Archive contains too many entries (maximum 512)")
    refused(store, Zip().add("SKILL.md", skill_md()).bytes(count=60000), "Archive contains too many entries "
            "(maximum 512)")


@pytest.mark.parametrize("lies", [{"size": 10}, {"size": 200000}, {"size": 99999}])
def test_a_size_that_is_not_the_announced_one(store, lies):
    content = os.urandom(5000) * 20
    archive = Zip().add("SKILL.md", skill_md()).add("f", content, deflate=True, **lies)
    refused(store, archive.bytes(), "Archive entry size changed while extracting: f")


def test_stored_sizes_that_differ(store):
    archive = Zip().add("SKILL.md", skill_md()).add("f", b"x" * 100, size=50, compressed=100)
    refused(store, archive.bytes(), "Archive entry size changed while extracting: f")


def test_damage(store):
    refused(store, Zip().add("SKILL.md", skill_md(), crc=1).bytes(), INVALID)
    broken = Zip().add("SKILL.md", skill_md()).add("f", os.urandom(100), method=8, size=1000)
    refused(store, broken.bytes(), INVALID)


def test_encryption_and_methods(store):
    for flags in (0x801, 0x841):
        refused(store, Zip().add("f", b"x", flags=flags).bytes(), "Archive entry is encrypted: f")
    for method in (1, 9, 12, 14, 93, 95):
        refused(store, Zip().add("f", b"x", method=method).bytes(),
                "Archive entry uses an unsupported compression method: f")


def test_archives_that_can_be_read_in_two_ways(store):
    one, two = good(), python_zip({"SKILL.md": skill_md("other")})
    made = Zip().add("SKILL.md", skill_md()).add("f", b"x")
    cases = {
        "bytes behind the end": one + b"x",
        "bytes before the start": b"x" * 10 + one,
        "two archives": one + two,
        "a comment that lies about its length": made.bytes() + b"12345",
        "an end inside the comment": made.bytes(comment=b"PK\x05\x06" + bytes(18)),
        "another disk": made.bytes(disk=1),
        "counts that differ": made.bytes(total=1),
        "fewer entries than there are": made.bytes(count=1),
        "more entries than there are": made.bytes(count=3),
        "a directory elsewhere": made.bytes(offset=0),
        "a directory of another size": made.bytes(size=1),
        "something between directory and end": made.bytes(before_end=b"xxxx"),
        "a name in two spellings": Zip().add("SKILL.md", skill_md(), local_name=b"skill.MD").bytes(),
        "an entry in the directory": Zip().add("SKILL.md", skill_md(), offset=5000).bytes(),
        "more data than there is": Zip().add("f", b"x", compressed=5000, size=5000).bytes(),
        "an entry without its 64 bits": Zip().add("f", b"x", size=0xFFFFFFFF).bytes(),
        "64 bits that are cut": Zip().add("f", b"x", size=0xFFFFFFFF, extra=b"\x01\0\x04\0abcd").bytes(),
        "an extra field that is too long": Zip().add("f", b"x", size=0xFFFFFFFF, extra=b"\x02\0\xff\0ab").bytes(),
    }
    for what, archive in cases.items():
        with pytest.raises(JobError) as error:
            store.call("install_zip", archive, filename="x.zip")
        assert str(error.value) == INVALID, what
        assert tree(store) == [], what


def test_entries_that_overlap(store):
    """Many entries with one body: a bomb without any ratio."""
    kernel = bytes(1 << 16)
    archive = Zip().add("SKILL.md", skill_md()).add("a", kernel)
    archive.add("b", kernel, offset=len(Zip().add("SKILL.md", skill_md()).local), local_name=b"a")
    refused(store, archive.bytes(), INVALID)
    quoted = Zip().add("SKILL.md", skill_md())
    inner = Zip().add("b", b"y" * 10).local
    at = len(quoted.local)
    quoted.add("a", inner + b"rest")
    quoted.add("b", b"y" * 10, offset=at + 30 + 1)
    refused(store, quoted.bytes(), INVALID)


def test_64_bits(store):
    """Archives of writers that always use the large format are fine; lies in it are not."""
    content = skill_md("large")
    base = Zip().add("SKILL.md", content, size=len(content), compressed=len(content))
    plain = Zip().add("SKILL.md", content)
    extra = struct.pack("<HHQQQ", 1, 24, len(content), len(content), 0)
    base.central = Zip().add("SKILL.md", content, size=0xFFFFFFFF, compressed=0xFFFFFFFF, offset=0xFFFFFFFF,
                             extra=extra).central
    assert base.local == plain.local

    def archive(entries=1, total=None, at=None, size=None):
        offset, length = len(base.local), len(base.central)
        end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, entries, total or entries,
                            length if size is None else size, offset)
        locator = struct.pack("<IIQI", 0x07064B50, 0, offset + length if at is None else at, 1)
        return base.bytes(before_end=end64 + locator, count=0xFFFF, offset=0xFFFFFFFF, size=0xFFFFFFFF)

    assert store.call("preview_zip", archive())["skills"][0]["name"] == "large"
    refused(store, archive(entries=1 << 40), "Archive contains too many entries (maximum 512)")
    for lie in (archive(entries=2), archive(total=7), archive(at=0), archive(at=1 << 60), archive(size=1 << 50)):
        refused(store, lie, INVALID)
    huge = Zip().add("SKILL.md", skill_md(), size=0xFFFFFFFF, compressed=0xFFFFFFFF,
                     extra=struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63)).bytes()
    refused(store, huge, INVALID)


def test_a_zip_in_a_stream(store):
    """Writers that cannot seek put the sizes behind the data."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError

        def tell(self):
            raise OSError

    out = Pipe()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SKILL.md", skill_md("streamed"))
        archive.writestr("more", b"x" * 500)
    assert store.call("install_zip", out.getvalue())["skills"][0]["name"] == "streamed"


def test_hostile_text_in_an_archive(store):
    bad = python_zip({"SKILL.md": b"---\nname: [\n---\n"})
    with pytest.raises(JobError, match="^SKILL.md front matter is not valid YAML: line 3: "):
        store.call("preview_zip", bad)
    refused(store, python_zip({"SKILL.md": b"\xff\xfe"}), "Skill entry file SKILL.md is not valid UTF-8 text")
    large = Zip().add("SKILL.md", os.urandom((1 << 20) + 1)).bytes()
    refused(store, large, "Skill entry file SKILL.md exceeds the 1048576-byte limit")


def test_a_job_that_is_killed_leaves_nothing_for_long(store):
    """Whenever it dies: the next job finds no half of a skill."""
    archive = python_zip({f"d{i}/SKILL.md": skill_md(f"s{i}") for i in range(3)} | {"big": ratio(4 << 20, 50)})
    request = {"op": "install_zip", "root": store.root, "shared": False,
               "data": {"filename": "k.zip", "source_paths": ["d0", "d1", "d2"]}}
    for ready in range(6):
        job = start(store.path, store.make)
        job.stdin.write(json.dumps(request).encode() + b"\n" + archive)
        job.stdin.close()
        while ready and job.poll() is None and len(tree(store)) < 2 ** ready // 2:
            pass
        job.kill()
        job.wait()
        job.stdout.close()
        job.stderr.close()
        for name in store.names():
            assert store.call("get", name=name)["skill"]["instructions"] == "Do it.\n"
            store.call("delete", name=name)
        assert tree(store) == []
