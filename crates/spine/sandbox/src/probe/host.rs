//! What the host looks like, as far as a plan depends on it.
//!
//! Of `/etc` only what is on a list: public, and needed by programs. Private
//! keys, passwords and settings of services never are. Only looks.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::plan::Host;

/// Where programs and libraries are.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
];

/// Public files of `/etc` that programs fail without. Not `/etc/ssl` and
/// `/etc/pki` as wholes: private keys are beside the certificates.
const ETC: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld-musl-x86_64.path",
    "ld-musl-aarch64.path",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Where files of `/etc` may really be.
const ETC_TARGETS: &[&str] = &[
    "/etc",
    "/usr",
    "/nix/store",
    "/gnu/store",
    "/var/lib/ca-certificates",
];

impl Host {
    /// Looks at this machine and the caller's `PATH`.
    #[must_use]
    pub fn probe() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (system, links) = system();
        Self {
            system,
            links,
            etc: etc(),
            path: std::env::split_paths(&path)
                .filter(|entry| is_plain(entry))
                .collect(),
        }
    }
}

fn system() -> (Vec<PathBuf>, Vec<(PathBuf, PathBuf)>) {
    let (mut directories, mut links) = (Vec::new(), Vec::new());
    for path in SYSTEM.iter().map(PathBuf::from) {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => directories.push(path),
            Ok(found) if found.is_symlink() => {
                if let Ok(target) = fs::read_link(&path) {
                    links.push((path, target));
                }
            }
            _ => {}
        }
    }
    // A link is only worth something if what it points to is there too.
    links.retain(|(link, target)| {
        let parent = link.parent().unwrap_or(Path::new("/"));
        let target = parent.join(target);
        is_plain(&target) && directories.iter().any(|known| target.starts_with(known))
    });
    (directories, links)
}

fn etc() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ETC
        .iter()
        .map(|name| Path::new("/etc").join(name))
        .chain(java())
        .filter(|path| {
            fs::canonicalize(path)
                .is_ok_and(|real| ETC_TARGETS.iter().any(|target| real.starts_with(target)))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Debian keeps each Java's own settings in a directory of its version.
fn java() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/etc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("java-") && name.ends_with("-openjdk")
        })
        .map(|entry| entry.path())
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_programs_and_no_secrets_of_etc() {
        let host = Host::probe();
        assert!(host.system.contains(&PathBuf::from("/usr")));
        let shown = |path: &str| {
            let path = Path::new(path);
            host.etc.iter().any(|entry| path.starts_with(entry))
        };
        for secret in [
            "/etc/shadow",
            "/etc/passwd",
            "/etc/gshadow",
            "/etc/sudoers",
            "/etc/ssh/ssh_host_ed25519_key",
            "/etc/ssl/private/key.pem",
            "/etc/pki/tls/private/key.pem",
            "/etc/npmrc",
            "/etc/gitconfig",
            "/etc/machine-id",
            "/etc/resolv.conf",
            "/etc/hosts",
        ] {
            assert!(!shown(secret), "{secret}");
        }
        for (link, target) in &host.links {
            assert!(fs::symlink_metadata(link).unwrap().is_symlink());
            assert!(!target.as_os_str().is_empty());
        }
        // Whatever holds the shell is there, as a directory or a link.
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert!(host.system.iter().any(|system| shell.starts_with(system)));
    }

    #[test]
    fn nothing_is_listed_twice_or_relative() {
        let host = Host::probe();
        for list in [&host.system, &host.etc, &host.path] {
            assert!(list.iter().all(|path| is_plain(path)));
        }
        assert!(host.etc.is_sorted_by(|a, b| a < b));
    }
}
