//! Where control groups can be made: read from the kernel's own tables.
//!
//! Understands version 1, version 2 and machines that have both. Parsing is
//! pure; only [`places`] looks at the machine. Next: `super` makes groups in
//! what is found here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a control group can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
    /// Counts processor time.
    Usage,
    Freezer,
}

impl Controller {
    const ALL: [Self; 5] = [
        Self::Memory,
        Self::Pids,
        Self::Cpu,
        Self::Usage,
        Self::Freezer,
    ];

    /// The name of version 1; version 2 has the first three.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Usage => "cpuacct",
            Self::Freezer => "freezer",
        }
    }

    /// What a machine without it cannot hold back.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Self::Memory => "memory of all processes together",
            Self::Pids => "number of processes",
            Self::Cpu => "share of the processors",
            Self::Usage => "used processor time",
            Self::Freezer => "stopping all processes at once",
        }
    }
}

/// Which of the kernel's two kinds of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A directory in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) directory: PathBuf,
    pub(super) controllers: Vec<Controller>,
}

/// What was found, and for the rest why not.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) places: Vec<Place>,
    pub(super) missing: Vec<Missing>,
}

/// A controller that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What it would have been for.
    pub(crate) purpose: &'static str,
    /// Why it cannot be used.
    pub(crate) why: String,
}

/// Looks at this machine. Fails for no reason but unreadable tables.
pub(super) fn places() -> io::Result<Found> {
    let hierarchies = hierarchies(
        &fs::read_to_string("/proc/self/mountinfo")?,
        &fs::read_to_string("/proc/self/cgroup")?,
    );
    let old: Vec<&Hierarchy> = hierarchies
        .iter()
        .filter(|one| one.version == Version::One && !one.controllers.is_empty())
        .collect();
    // With both, limits belong to version 1: version 2 has none left.
    if old.iter().any(|one| {
        one.controllers.contains(&Controller::Memory) || one.controllers.contains(&Controller::Pids)
    }) {
        return Ok(version_one(&old));
    }
    Ok(hierarchies
        .iter()
        .find(|one| one.version == Version::Two)
        .map_or_else(|| all_missing("no control groups are mounted"), version_two))
}

fn version_one(hierarchies: &[&Hierarchy]) -> Found {
    let mut found = Found::default();
    for controller in Controller::ALL {
        let holder = hierarchies
            .iter()
            .find(|one| one.controllers.contains(&controller));
        let why = match holder {
            None => format!("`{}` is not mounted", controller.name()),
            Some(one) if !writable(&one.own) => {
                format!("`{}` cannot be written", one.own.display())
            }
            Some(one) => {
                match found.places.iter_mut().find(|p| p.directory == one.own) {
                    Some(place) => place.controllers.push(controller),
                    None => found.places.push(Place {
                        version: Version::One,
                        directory: one.own.clone(),
                        controllers: vec![controller],
                    }),
                }
                continue;
            }
        };
        found.missing.push(Missing {
            purpose: controller.purpose(),
            why,
        });
    }
    found
}

/// The nearest directory, from our own upwards, that hands on the most of what
/// is wanted. Only one without processes of its own can, but for the topmost.
fn version_two(hierarchy: &Hierarchy) -> Found {
    let mut best: Option<(PathBuf, Vec<Controller>)> = None;
    for directory in hierarchy
        .own
        .ancestors()
        .take_while(|directory| directory.starts_with(&hierarchy.mount))
    {
        if !writable(directory) || !writable(&directory.join("cgroup.procs")) {
            continue;
        }
        // Below it no group could take a process.
        if file(directory, "cgroup.type").is_some_and(|kind| kind.trim() != "domain") {
            continue;
        }
        let handed_on = hand_on(directory);
        if best
            .as_ref()
            .is_none_or(|(_, so_far)| handed_on.len() > so_far.len())
        {
            best = Some((directory.to_owned(), handed_on));
        }
    }
    let Some((directory, mut controllers)) = best else {
        return all_missing(&format!(
            "`{}` and what is above it cannot be written",
            hierarchy.own.display()
        ));
    };
    let missing = [Controller::Memory, Controller::Pids, Controller::Cpu]
        .into_iter()
        .filter(|wanted| !controllers.contains(wanted))
        .map(|wanted| Missing {
            purpose: wanted.purpose(),
            why: format!(
                "`{}` does not hand on `{}`",
                directory.display(),
                wanted.name()
            ),
        })
        .collect();
    // Every group of version 2 has these.
    controllers.extend([Controller::Usage, Controller::Freezer]);
    Found {
        places: vec![Place {
            version: Version::Two,
            directory,
            controllers,
        }],
        missing,
    }
}

/// What children of this directory get, after asking for what is wanted.
fn hand_on(directory: &Path) -> Vec<Controller> {
    let read = |name: &str| {
        let text = file(directory, name).unwrap_or_default();
        named(text.split_whitespace())
    };
    // Where processes live the kernel refuses memory, but not the others: it
    // takes them to be for threads, and then no child can take a process. The
    // topmost directory, which alone has no type, may have processes.
    let is_topmost = file(directory, "cgroup.type").is_none();
    let is_empty = file(directory, "cgroup.procs").is_some_and(|text| text.is_empty());
    let may_ask = is_topmost || is_empty;
    let control = directory.join("cgroup.subtree_control");
    let wanted = [Controller::Memory, Controller::Pids, Controller::Cpu];
    let there = read("cgroup.controllers");
    let handed_on = read("cgroup.subtree_control");
    for controller in wanted {
        if may_ask && there.contains(&controller) && !handed_on.contains(&controller) {
            // Whatever is refused stays as it is.
            let _ = fs::write(&control, format!("+{}", controller.name()));
        }
    }
    let mut handed_on = read("cgroup.subtree_control");
    handed_on.retain(|controller| wanted.contains(controller));
    handed_on
}

fn all_missing(why: &str) -> Found {
    Found {
        places: Vec::new(),
        missing: Controller::ALL
            .into_iter()
            .map(|controller| Missing {
                purpose: controller.purpose(),
                why: why.to_owned(),
            })
            .collect(),
    }
}

fn file(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok()
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// One tree of control groups and where this process is in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    mount: PathBuf,
    own: PathBuf,
    controllers: Vec<Controller>,
}

/// Joins `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (root, mount) = (left.next()?, unescape(left.next()?));
            let mut right = right.split(' ');
            let (kind, options) = (right.next()?, right.nth(1)?);
            let (version, controllers) = match kind {
                "cgroup" => (Version::One, named(options.split(','))),
                "cgroup2" => (Version::Two, Vec::new()),
                _ => return None,
            };
            let own = own_group(groups, version, &controllers)?;
            // Inside a container the mount may show only a part of the tree.
            let below = Path::new(own).strip_prefix(root).unwrap_or(Path::new(""));
            Some(Hierarchy {
                version,
                own: if below.as_os_str().is_empty() {
                    mount.clone()
                } else {
                    mount.join(below)
                },
                mount,
                controllers,
            })
        })
        .collect()
}

fn own_group<'a>(groups: &'a str, version: Version, controllers: &[Controller]) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match version {
            Version::Two => number == "0" && names.is_empty(),
            Version::One => {
                !controllers.is_empty()
                    && named(names.split(','))
                        .iter()
                        .any(|controller| controllers.contains(controller))
            }
        };
        ours.then_some(path)
    })
}

fn named<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Controller> {
    let names: Vec<&str> = names.collect();
    Controller::ALL
        .into_iter()
        .filter(|controller| names.contains(&controller.name()))
        .collect()
}

/// The kernel writes spaces and the like as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..3).and_then(|d| u8::from_str_radix(d, 8).ok());
        match (digits, part.get(3..)) {
            (Some(byte), Some(rest)) if byte.is_ascii() => {
                path.push(char::from(byte));
                path.push_str(rest);
            }
            _ => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_both_versions() {
        let found = hierarchies(
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
            "4:memory:/api/one\n2:cpu,cpuacct:/\n9:name=systemd:/\n0::/\n",
        );
        let rows: Vec<_> = found
            .iter()
            .map(|one| {
                (
                    one.version,
                    one.own.to_str().unwrap(),
                    one.controllers.len(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (Version::One, "/sys/fs/cgroup/cpu,cpuacct", 2),
                (Version::One, "/sys/fs/cgroup/memory/api/one", 1),
                (Version::Two, "/sys/fs/cgroup/unified", 0),
            ]
        );
    }

    #[test]
    fn a_container_sees_only_its_part() {
        let found = hierarchies(
            "50 40 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
             51 40 0:33 /../.. /sys/fs/c\\040g rw - cgroup2 cgroup2 rw,nsdelegate\n",
            "4:memory:/docker/abc/inner\n0::/user.slice\n",
        );
        assert_eq!(found[0].own, Path::new("/sys/fs/cgroup/memory/inner"));
        assert_eq!(found[1].mount, Path::new("/sys/fs/c g"));
        assert_eq!(found[1].own, found[1].mount);
    }

    #[test]
    fn nonsense_is_nothing() {
        assert_eq!(hierarchies("", ""), []);
        assert_eq!(hierarchies("1 2 - cgroup2\n - \n", "::\n"), []);
    }

    #[test]
    fn children_get_only_what_the_directory_hands_on() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // The slice hands on two; the scope below it has processes and cannot.
        write("slice/cgroup.procs", "");
        write("slice/cgroup.controllers", "memory pids\n");
        write("slice/cgroup.subtree_control", "memory pids\n");
        write("slice/scope/cgroup.procs", "1\n");
        write("slice/scope/cgroup.controllers", "\n");
        write("slice/scope/cgroup.subtree_control", "\n");
        let found = version_two(&Hierarchy {
            version: Version::Two,
            mount: root.path().to_owned(),
            own: root.path().join("slice/scope"),
            controllers: vec![],
        });
        assert_eq!(found.places.len(), 1);
        assert_eq!(found.places[0].directory, root.path().join("slice"));
        assert!(found.places[0].controllers.contains(&Controller::Memory));
        assert_eq!(found.missing.len(), 1);
        assert!(found.missing[0].why.contains("`cpu`"));
    }

    #[test]
    fn nothing_is_asked_of_a_directory_with_processes() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("own");
        fs::create_dir(&own).unwrap();
        for (name, text) in [
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", "1\n"),
            ("cgroup.controllers", "cpu memory pids\n"),
            ("cgroup.subtree_control", ""),
        ] {
            fs::write(own.join(name), text).unwrap();
        }
        let hierarchy = Hierarchy {
            version: Version::Two,
            mount: own.clone(),
            own: own.clone(),
            controllers: vec![],
        };
        let found = version_two(&hierarchy);
        let asked = fs::read_to_string(own.join("cgroup.subtree_control")).unwrap();
        assert_eq!(asked, "");
        assert_eq!(
            found.places[0].controllers,
            [Controller::Usage, Controller::Freezer]
        );
        assert_eq!(found.missing.len(), 3);
        // Somebody else asked: now no group below it takes a process.
        fs::write(own.join("cgroup.type"), "domain threaded\n").unwrap();
        assert!(version_two(&hierarchy).places.is_empty());
        fs::write(own.join("cgroup.type"), "domain\n").unwrap();
        fs::write(own.join("cgroup.procs"), "").unwrap();
        version_two(&hierarchy);
        let asked = fs::read_to_string(own.join("cgroup.subtree_control")).unwrap();
        assert!(asked.starts_with('+'), "{asked}");
    }
}
