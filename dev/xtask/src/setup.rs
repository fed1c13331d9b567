//! Installs what the tests need and this machine has not got.
//!
//! Through apt, as root or with sudo; where neither works it says exactly what
//! to install. Never installs what is already there.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use fluffy_test_kit::{EMULATOR, GuestKernel, PrivatePooler, PrivatePostgres, PublishedServers};

use crate::output;
use crate::process::{capture, find_program, run};
use crate::step::Outcome;
use crate::workspace::{Workspace, cargo};

/// Something the tests need, and the package that has it.
struct Need {
    what: &'static str,
    package: &'static str,
    is_there: fn() -> bool,
}

const NEEDS: &[Need] = &[
    Need {
        what: "a C compiler",
        package: "build-essential",
        is_there: || find_program("cc").is_some(),
    },
    Need {
        what: "a C++ compiler",
        package: "build-essential",
        is_there: || find_program("g++").is_some() || find_program("c++").is_some(),
    },
    Need {
        what: "git",
        package: "git",
        is_there: || find_program("git").is_some(),
    },
    Need {
        what: "a session bus",
        package: "dbus-daemon",
        is_there: || find_program("dbus-run-session").is_some(),
    },
    Need {
        what: "dbus-send",
        package: "dbus-bin",
        is_there: || find_program("dbus-send").is_some(),
    },
    Need {
        what: "a keyring",
        package: "gnome-keyring",
        is_there: || find_program("gnome-keyring-daemon").is_some(),
    },
    Need {
        what: "secret-tool",
        package: "libsecret-tools",
        is_there: || find_program("secret-tool").is_some(),
    },
    Need {
        what: "setpriv",
        package: "util-linux",
        is_there: || find_program("setpriv").is_some(),
    },
    Need {
        what: "the PostgreSQL server",
        package: "postgresql",
        is_there: || PrivatePostgres::installed().is_ok(),
    },
    Need {
        what: "PgBouncer, a pooler in front of it",
        package: "pgbouncer",
        is_there: PrivatePooler::is_installed,
    },
    Need {
        what: "the Docker engine",
        package: "docker.io",
        is_there: || has_server("dockerd") && has_server("containerd"),
    },
    Need {
        what: "the docker command",
        package: "docker.io",
        is_there: || find_program("docker").is_some(),
    },
    Need {
        what: "a registry of images",
        package: "docker-registry",
        is_there: || find_program("docker-registry").is_some(),
    },
    Need {
        what: "buildah, which builds images for it",
        package: "buildah",
        is_there: || find_program("buildah").is_some(),
    },
    Need {
        what: "skopeo, which fills it",
        package: "skopeo",
        is_there: || find_program("skopeo").is_some(),
    },
    Need {
        what: "age, which encrypts shares of master keys",
        package: "age",
        is_there: || find_program("age").is_some(),
    },
    Need {
        what: "umoci, a second opinion on layers",
        package: "umoci",
        is_there: || find_program("umoci").is_some(),
    },
    Need {
        what: "fsck.erofs, a second opinion on root file systems",
        package: "erofs-utils",
        is_there: || find_program("fsck.erofs").is_some(),
    },
    Need {
        what: "a static busybox, which instances of tests run",
        package: "busybox-static",
        is_there: has_static_busybox,
    },
    Need {
        what: "ip, which gives nodes of tests networks of their own",
        package: "iproute2",
        is_there: || find_program("ip").is_some(),
    },
    Need {
        what: "Podman",
        package: "podman",
        is_there: || find_program("podman").is_some(),
    },
    Need {
        what: "runc",
        package: "runc",
        is_there: || has_server("runc"),
    },
    Need {
        what: "newuidmap",
        package: "uidmap",
        is_there: || find_program("newuidmap").is_some(),
    },
    Need {
        what: "fuse-overlayfs",
        package: "fuse-overlayfs",
        is_there: || find_program("fuse-overlayfs").is_some(),
    },
    Need {
        what: "bwrap",
        package: "bubblewrap",
        is_there: || find_program("bwrap").is_some(),
    },
    Need {
        what: "a static busybox",
        package: "busybox-static",
        is_there: || find_program("busybox").is_some(),
    },
    Need {
        what: "curl",
        package: "curl",
        is_there: || find_program("curl").is_some(),
    },
    Need {
        what: "openssl",
        package: "openssl",
        is_there: || find_program("openssl").is_some(),
    },
    Need {
        what: "Python with pytest",
        package: "python3-pytest",
        is_there: || has_module("pytest"),
    },
    Need {
        what: "Python with pip",
        package: "python3-pip",
        is_there: || has_module("pip"),
    },
    Need {
        what: "Python with venv",
        package: "python3-venv",
        is_there: || has_module("ensurepip"),
    },
    Need {
        what: "Go",
        package: "golang-go",
        is_there: || find_program("go").is_some(),
    },
    Need {
        what: "go-plugin, the library that foreign plugins are made with",
        package: "golang-github-hashicorp-go-plugin-dev",
        is_there: || has_go_package("github.com/hashicorp/go-plugin"),
    },
    Need {
        what: "gRPC for Go",
        package: "golang-google-grpc-dev",
        is_there: || has_go_package("google.golang.org/grpc"),
    },
    Need {
        what: "protobuf for Go",
        package: "golang-goprotobuf-dev",
        is_there: || find_program("protoc-gen-go").is_some(),
    },
    Need {
        what: "x/net for Go",
        package: "golang-golang-x-net-dev",
        is_there: || has_go_package("golang.org/x/net"),
    },
    Need {
        what: "protoc",
        package: "protobuf-compiler",
        is_there: || find_program("protoc").is_some(),
    },
    Need {
        what: "npm",
        package: "npm",
        is_there: || find_program("npm").is_some(),
    },
    Need {
        what: "an emulator for guests",
        package: "qemu-system-x86",
        is_there: || find_program(EMULATOR).is_some() || !GUESTS,
    },
    Need {
        what: "ripgrep, beside which searches are measured",
        package: "ripgrep",
        is_there: || find_program("rg").is_some(),
    },
];

/// Whether tests boot guests here: what they emulate is this machine's kind.
const GUESTS: bool = cfg!(target_arch = "x86_64");

/// Installs what is missing.
pub(crate) fn run_setup(workspace: &Workspace) -> Result<Outcome> {
    if let Some(problem) = install_components() {
        return Ok(Outcome::Failed(problem));
    }
    let installed = install_packages()?;
    let fetched = || fetch_kernel(&workspace.target).or_else(|| fetch_servers(&workspace.target));
    Ok(match installed {
        Outcome::Passed(text) => match fetched() {
            Some(problem) => Outcome::Failed(problem),
            None => Outcome::Passed(text),
        },
        outcome => outcome,
    })
}

/// Fetches the servers that plugins are tried with; the text says why not.
fn fetch_servers(target: &Path) -> Option<String> {
    let error = PublishedServers::fetch(target).err()?;
    Some(format!(
        "the published servers cannot be fetched: {error:#}"
    ))
}

/// Fetches the kernel that guests boot; the text says why it could not.
fn fetch_kernel(target: &Path) -> Option<String> {
    if !GUESTS {
        return None;
    }
    GuestKernel::fetch(target).err()?;
    // A list of packages that is missing or old names nothing to fetch.
    if let Some(prefix) = become_root() {
        let _ = run(&mut apt_get(&prefix, &["update"]), "");
    }
    let error = GuestKernel::fetch(target).err()?;
    Some(format!(
        "the kernel for guests cannot be fetched: {error:#}"
    ))
}

fn install_packages() -> Result<Outcome> {
    let missing = missing(NEEDS);
    if missing.is_empty() {
        return Ok(Outcome::Passed("nothing is missing".to_owned()));
    }
    let packages = packages(&missing);
    let by_hand = format!("apt-get install {}", packages.join(" "));
    let Some(prefix) = become_root() else {
        return Ok(Outcome::Failed(format!(
            "missing: {}; there is no apt-get, or neither root nor a working sudo; \
             run as root: {by_hand}",
            names(&missing)
        )));
    };
    output::line(&format!("installing {}", packages.join(", ")));
    // A stale list of packages still often knows the package.
    let _ = run(&mut apt_get(&prefix, &["update"]), "")?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    let installed = run(&mut apt_get(&prefix, &arguments), "")?;
    let still = self::missing(NEEDS);
    Ok(match installed {
        _ if still.is_empty() => Outcome::Passed(format!("installed {}", packages.join(", "))),
        Outcome::Failed(reason) => Outcome::Failed(format!(
            "could not install {} ({reason}); install by hand: {by_hand}",
            names(&still)
        )),
        _ => Outcome::Failed(format!(
            "still missing after `{by_hand}`: {}",
            names(&still)
        )),
    })
}

/// Whether a server's program is on PATH, or where only root's PATH leads.
/// One that needs no library of an image.
fn has_static_busybox() -> bool {
    let loader = b"/ld-linux";
    let found = std::fs::read("/bin/busybox");
    found.is_ok_and(|bytes| !bytes.windows(loader.len()).any(|it| it == loader))
}

fn has_server(name: &str) -> bool {
    let root_only = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name));
    find_program(name).is_some() || root_only.iter().any(|file| file.is_file())
}

/// Whether the system's Python, the one that sandboxes see, has a module.
fn has_module(name: &str) -> bool {
    capture(Command::new("/usr/bin/python3").args(["-I", "-c", &format!("import {name}")]))
        .is_some()
}

/// Whether a library of Go came with the system, sources and all.
fn has_go_package(path: &str) -> bool {
    Path::new("/usr/share/gocode/src").join(path).is_dir()
}

fn missing(needs: &[Need]) -> Vec<&Need> {
    needs.iter().filter(|need| !(need.is_there)()).collect()
}

fn names(needs: &[&Need]) -> String {
    let names: Vec<&str> = needs.iter().map(|need| need.what).collect();
    names.join(", ")
}

fn packages(needs: &[&Need]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The words in front of a command that make it run as root.
fn become_root() -> Option<Vec<&'static str>> {
    find_program("apt-get")?;
    if rustix::process::geteuid().is_root() {
        return Some(Vec::new());
    }
    find_program("sudo")?;
    if output::is_interactive() {
        return Some(vec!["sudo"]);
    }
    // Nobody is there to type a password.
    capture(Command::new("sudo").args(["-n", "true"])).map(|_| vec!["sudo", "-n"])
}

fn apt_get(prefix: &[&str], arguments: &[&str]) -> Command {
    let mut words = prefix.iter().chain(&["env"]);
    let mut command = Command::new(words.next().copied().unwrap_or("env"));
    command
        .args(words)
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments);
    command
}

/// The targets that tests build small guests for.
const GUEST_TARGETS: [&str; 2] = ["wasm32-wasip1", "wasm32-wasip2"];

/// Adds rustfmt, clippy and the guests' targets to the toolchain; the text
/// says what is missing.
fn install_components() -> Option<String> {
    install_tools()
        .or_else(install_guest_targets)
        .or_else(fetch_sample_plugin)
}

/// What the sample plugin is compiled from; its tests build it without a network.
fn fetch_sample_plugin() -> Option<String> {
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/plugins/rust-wasm/Cargo.toml"
    );
    let fetch = ["fetch", "--locked", "--manifest-path", manifest];
    capture(cargo().args(fetch)).is_none().then(|| {
        format!(
            "the crates of the sample plugin could not be fetched; run: cargo {}",
            fetch.join(" ")
        )
    })
}

fn install_guest_targets() -> Option<String> {
    let there = || {
        let sysroot = capture(Command::new("rustc").args(["--print", "sysroot"]));
        let libraries = sysroot.map(|root| Path::new(root.trim()).join("lib/rustlib"));
        libraries.is_some_and(|libraries| {
            GUEST_TARGETS
                .iter()
                .all(|target| libraries.join(target).is_dir())
        })
    };
    if there() {
        return None;
    }
    let mut add = Command::new("rustup");
    add.args(["target", "add"]).args(GUEST_TARGETS);
    (capture(&mut add).is_none() || !there()).then(|| {
        format!(
            "the targets for WASM are missing and rustup could not add them; \
             run: rustup target add {}",
            GUEST_TARGETS.join(" ")
        )
    })
}

fn install_tools() -> Option<String> {
    let there = |name: &str| capture(cargo().args([name, "--version"])).is_some();
    let all = || there("fmt") && there("clippy");
    if all() {
        return None;
    }
    let added = capture(Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]));
    (added.is_none() || !all()).then(|| {
        "rustfmt or clippy is missing and rustup could not add it; \
         run: rustup component add rustfmt clippy"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(what: &'static str, package: &'static str, is_there: fn() -> bool) -> Need {
        Need {
            what,
            package,
            is_there,
        }
    }

    #[test]
    fn only_what_is_missing_is_installed_and_once() {
        let needs = [
            need("one", "b", || false),
            need("two", "a", || true),
            need("three", "b", || false),
        ];
        let missing = missing(&needs);
        assert_eq!(packages(&missing), ["b"]);
        assert_eq!(names(&missing), "one, three");
    }

    #[test]
    fn apt_is_never_asked_to_ask() {
        let words = |prefix: &[&str]| {
            let command = apt_get(prefix, &["update"]);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let tail = "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 update";
        assert_eq!(words(&[]), tail);
        assert_eq!(words(&["sudo", "-n"]), format!("sudo -n {tail}"));
    }
}
