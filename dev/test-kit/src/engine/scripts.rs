//! The shell scripts that run an engine and clean up after it.
//!
//! Each waits until its input closes, which also happens on Ctrl-C and on
//! `kill -9` of its owner, and then ends only what it started: its children by
//! their id, and helpers of the engine whose command line names its own folder.

/// What all scripts share. `$1` is the engine's folder.
pub(super) const COMMON: &str = r#"
folder=$1
cd / || exit 1

# A process that has ended but was not waited for is there as a zombie.
runs() {
    grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null
}

stop() {
    kill -TERM "$1" 2>/dev/null
    tries=0
    while runs "$1" && [ "$tries" -lt 200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -KILL "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}

await_socket() {
    tries=0
    while [ ! -S "$1" ] && runs "$2" && [ "$tries" -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

# Says that the process with this id is the engine, and waits for our owner.
attend() {
    echo "$1" >"$folder/engine.pid.new"
    mv "$folder/engine.pid.new" "$folder/engine.pid"
    read -r _ || true
}

clear_folder() {
    for file in /proc/[0-9]*/comm; do
        case "$(cat "$file" 2>/dev/null)" in
            # The service of a rootless Podman has a child that is Podman too.
            containerd-shim* | conmon | podman)
                process=${file#/proc/}
                process=${process%/comm}
                if tr '\0' ' ' 2>/dev/null <"/proc/$process/cmdline" | grep -qF "$folder"; then
                    stop "$process"
                fi
                ;;
        esac
    done
    awk -v prefix="$folder/" 'index($5, prefix) == 1 { print $5 }' /proc/self/mountinfo |
        sort -r | while read -r point; do
            umount "$point" 2>/dev/null || umount -l "$point"
        done
    rm -rf --one-file-system "$folder"
}
"#;

/// Runs containerd and dockerd; `$2` is the group that may use the socket.
///
/// A containerd of its own: dockerd would share the system's, with all of the
/// containers that others have in it.
pub(super) const DOCKER: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
containerd --config "$folder/containerd.toml" >>"$folder/engine.log" 2>&1 </dev/null &
containerd=$!
await_socket "$folder/containerd.sock" "$containerd"
dockerd --config-file "$folder/docker.json" --containerd "$folder/containerd.sock" \
    --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/docker.pid" \
    --host "unix://$folder/engine.sock" --group "$2" \
    --iptables=false --ip6tables=false --bridge=none >>"$folder/engine.log" 2>&1 </dev/null &
docker=$!
attend "$docker"
exec >>"$folder/engine.log" 2>&1
if runs "$docker"; then
    export DOCKER_HOST="unix://$folder/engine.sock"
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes
fi
stop "$docker"
runtime="$folder/exec/runtime-runc/moby"
if [ -d "$runtime" ]; then
    for container in $(runc --root "$runtime" list --quiet); do
        runc --root "$runtime" delete --force "$container"
    done
fi
stop "$containerd"
clear_folder
"#;

/// Runs Podman's service, as whoever runs the script.
///
/// Locks are files, because the default is one table per user in shared
/// memory, which other Podmans use too.
pub(super) const PODMAN: &str = r#"
mkdir -p "$folder/home" "$folder/user" "$folder/tmp"
export HOME="$folder/home" XDG_RUNTIME_DIR="$folder/user" TMPDIR="$folder/tmp"
export CONTAINERS_CONF="$folder/containers.conf" CONTAINERS_STORAGE_CONF="$folder/storage.conf"
podman system service --time 0 "unix://$folder/engine.sock" >>"$folder/engine.log" 2>&1 </dev/null &
podman=$!
attend "$podman"
exec >>"$folder/engine.log" 2>&1
podman rm --all --force --time 0
stop "$podman"
find "$folder" -name pause.pid 2>/dev/null | while read -r file; do
    kill -KILL "$(cat "$file")"
done
# Files of other users of our namespace are only ours to remove inside it.
if [ "$(id -u)" -ne 0 ]; then
    podman unshare rm -rf "$folder/root" "$folder/run"
    find "$folder" -name pause.pid 2>/dev/null | while read -r file; do
        kill -KILL "$(cat "$file")"
    done
fi
clear_folder
"#;
