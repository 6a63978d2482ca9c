#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: filtered_programs.sh RUN_FILTERED
# Programs that people run in a sandbox must bear the system call filter. One line per program;
# what is not installed is skipped. TAP output. $CHECK_TIMEOUT: seconds for each, 60 unless given.
# $CHECK_ONLY: names of the checks to run, all unless given.
# shellcheck disable=SC2016 # the commands expand in their own shell
set -u
filtered=$(realpath "$1")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export RUSTUP_HOME="${RUSTUP_HOME:-${HOME:-/}/.rustup}" # before HOME goes
export HOME="$dir" GOCACHE="$dir/go" GIT_CONFIG_NOSYSTEM=1
n=0 failed=0

# check NAME PROGRAM ARG...: PROGRAM must succeed under the filter.
check() {
    name=$1
    shift
    n=$((n + 1))
    if [ -n "${CHECK_ONLY:-}" ] && [ "${CHECK_ONLY#*" $name "}" = "$CHECK_ONLY" ]; then
        echo "ok $n - $name # SKIP not asked for"
    elif ! command -v "$1" >/dev/null 2>&1; then
        echo "ok $n - $name # SKIP $1 is not installed"
    elif timeout "${CHECK_TIMEOUT:-60}" "$filtered" "$@" >out 2>&1 </dev/null; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        sed 's/^/# /' out | tail -20
        failed=1
    fi
}

check bash bash -c 'set -eo pipefail; for i in 1 2 3; do (echo $i | cat | grep -q $i) & done; wait;
    diff <(echo a) <(echo a); read -t 1 x < <(echo b); test "$x" = b; ulimit -n 64; kill -0 $$'
check coreutils bash -c 'set -e; echo x > a; cp -a a b; cp --reflink=auto a c; mv b d; ln -s d e; chmod 755 d;
    touch -d 2001-01-01 d; stat d; ls -la; df . ; du .; id; nproc; date; sync; sync a; truncate -s 1M f;
    timeout 5 sleep 0.01; nice true; mkfifo p; split -n 2 f; sort a; shred -u c; install -m 644 a i; rm -rf e p'
check tar bash -c 'set -e; mkdir t; echo x > t/x; ln t/x t/y; tar czf t.tgz t; rm -r t; tar xzf t.tgz; cmp t/x t/y'
check git bash -c 'set -e; git init -q r; cd r; echo a > a; git add a;
    git -c user.name=n -c user.email=e@e commit -qm m; git clone -q . ../r2; git gc -q; git log | grep -q m'
check gcc bash -c 'set -e; echo "#include <stdio.h>
    int main(void) { puts(\"hello\"); }" > h.c; gcc -O2 -pipe -o h h.c; ./h | grep -q hello'
check make bash -c 'set -e; printf "all: a b\na b:\n\techo \$@\n" > m.mk; make -s -j2 -f m.mk'
check cmake bash -c 'set -e; mkdir cm; cd cm; echo "int main(void) { return 0; }" > m.c;
    printf "cmake_minimum_required(VERSION 3.5)\nproject(p C)\nadd_executable(m m.c)\n" > CMakeLists.txt;
    cmake . && cmake --build .'
check sqlite3 bash -c 'set -e; sqlite3 x.db "pragma journal_mode=wal; create table t(a); insert into t values(1)";
    test "$(sqlite3 x.db "select a from t")" = 1'
check perl perl -MPOSIX -e '$p = fork // die; exit 0 unless $p; waitpid $p, 0; die if $?; print strftime("%c", localtime)'

cat > basics.py <<'PY'
import ctypes, fcntl, mmap, os, resource, select, signal, socket, sqlite3, ssl, subprocess, tempfile, threading, time
t = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(20)]
[x.start() for x in t]; [x.join() for x in t]
assert subprocess.run(["cat"], input=b"x", capture_output=True, check=True).stdout == b"x"
assert subprocess.check_output("echo a | tr a b", shell=True) == b"b\n"
m = mmap.mmap(-1, 1 << 20); m[0] = 1; m.madvise(mmap.MADV_DONTNEED) ; m.close()
fd = os.memfd_create("x"); os.write(fd, b"x"); os.sendfile(os.open("/dev/null", os.O_WRONLY), fd, 0, 1)
r, w = os.pipe2(os.O_NONBLOCK); os.write(w, b"x"); assert select.select([r], [], [], 1)[0]
with tempfile.NamedTemporaryFile() as f: fcntl.flock(f, fcntl.LOCK_EX); os.posix_fallocate(f.fileno(), 0, 4096)
pid = os.posix_spawn("/bin/true", ["true"], {}); assert os.waitpid(pid, 0)[1] == 0
pfd = os.pidfd_open(os.getpid()); os.close(pfd)
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); c.sendall(b"x")
assert s.accept()[0].recv(1) == b"x"
assert socket.getaddrinfo("localhost", 80) and socket.if_nameindex()
db = sqlite3.connect("y.db"); db.execute("create table t(a)"); db.commit()
resource.getrlimit(resource.RLIMIT_NOFILE); os.sched_getaffinity(0); os.nice(1); os.getrandom(8); os.getloadavg()
ssl.create_default_context(); ctypes.CDLL(None).getpid()
PY
check python-basics python3 basics.py
cat > aio.py <<'PY'
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    # Wake-ups from a thread go over a socketpair, with send(2).
    assert await loop.run_in_executor(None, lambda: 42) == 42
    p = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await p.communicate(b"x"))[0] == b"x" and p.returncode == 0
    async def serve(r, w): w.write(await r.read(1)); await w.drain(); w.close()
    s = await asyncio.start_server(serve, "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
    w.write(b"y"); assert await r.read(1) == b"y"
    u = await asyncio.start_unix_server(serve, "sock")
    r, w = await asyncio.open_unix_connection("sock"); w.write(b"z"); assert await r.read(1) == b"z"
asyncio.run(main())
PY
check python-asyncio python3 aio.py
cat > mp.py <<'PY'
import multiprocessing as mp
from multiprocessing import shared_memory
def square(x): return x * x
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as p: assert p.map(square, range(8)) == [x * x for x in range(8)]
    q = mp.Queue(); p = mp.Process(target=q.put, args=(1,)); p.start(); assert q.get(timeout=10) == 1; p.join()
    s = shared_memory.SharedMemory(create=True, size=64); s.close(); s.unlink()
    with mp.Manager() as m: d = m.dict(); d["a"] = 1; assert d["a"] == 1
PY
check python-multiprocessing python3 mp.py
check python-venv python3 -m venv --without-pip venv

cat > n.js <<'JS'
const {Worker} = require('worker_threads'), fs = require('fs'), cp = require('child_process'), net = require('net');
fs.writeFileSync('n.txt', 'x'); fs.watch('n.txt').close(); fs.copyFileSync('n.txt', 'n2.txt');
if (cp.execFileSync('cat', ['n.txt']).toString() !== 'x') process.exit(1);
const s = net.createServer(c => c.pipe(c)).listen(0, '127.0.0.1', () => {
  const c = net.connect(s.address().port, '127.0.0.1', () => c.write('y'));
  c.on('data', () => { c.destroy(); s.close();
    new Worker('require("worker_threads").parentPort.postMessage(require("zlib").gzipSync("x").length)', {eval: true})
      .on('message', m => require('crypto').scrypt('p', 's', 16, e => process.exit(e || !m ? 1 : 0))); });
});
JS
check node node n.js
check npm npm --version
mkdir hello && cat > hello/Main.java <<'JAVA'
public class Main { public static void main(String[] a) throws Exception {
  Thread t = new Thread(() -> System.out.println("hello")); t.start(); t.join();
  if (new ProcessBuilder("true").start().waitFor() != 0) System.exit(1); } }
JAVA
check java java hello/Main.java
printf 'package main\nimport ("fmt"; "os/exec"; "net")\nfunc main() { l, e := net.Listen("tcp", "127.0.0.1:0"); if e != nil { panic(e) }; l.Close(); if exec.Command("true").Run() != nil { panic(1) }; fmt.Println("hello") }\n' > h.go
if [ -n "${BOX_TEST_SLOW:-}" ]; then
    check go go run h.go
    echo 'fn main() { std::thread::spawn(|| println!("hello")).join().unwrap(); std::process::Command::new("true").status().unwrap(); }' > h.rs
    check rust bash -c 'rustc h.rs -o hr && ./hr'
fi
check curl bash -c 'curl -s file:///etc/hostname; curl -s http://127.0.0.1:9/; test $? = 7'
check gdb-without-debug bash -c '! command -v gdb || ! gdb -batch -ex run /bin/true 2>&1 | grep -q "exited normally"'
check ps ps -ef
check find-xargs bash -c 'find . -name "*.py" -print0 | xargs -0 -P 2 wc -l'
check ssh-keygen ssh-keygen -q -t ed25519 -N "" -f key
check openssl openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -subj /CN=x
echo "1..$n"
exit $failed
