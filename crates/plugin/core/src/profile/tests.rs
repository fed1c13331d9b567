//! Profiles word for word, with hostile names, on machines that lack things.

use std::ffi::{OsStr, OsString};

use proptest::prelude::*;

use super::*;
use crate::Manifest;

const FULL: &str = "\
name: full
version: 1.0.0
type: tool
engine: \"*\"
api: 1
capabilities: [ \"fs.*\", \"net.connect.*\" ]
execution:
  tier: process
  command: [ ./bin/full, --serve ]
  protocol: go-plugin
  limits: { memory: 64MiB, cpu: 0.25, pids: 9 }
  sandbox:
    filesystem: { read_allow: [ /docs/*, /README.md, /gone/* ], read_deny: [ /docs/private/*, /docs/key, /docs/later ], write_allow: [ \"@data/*\" ] }
    network: { allow: [ \"a.example.com:443\", \"*.b.example.com:8443\" ] }
";

const EMPTY: &str = "\
name: empty
version: 1.0.0
type: tool
engine: \"*\"
api: 1
execution: { tier: process, command: [ node, x.js ], protocol: mcp }
";

fn execution(text: &str) -> Execution {
    Manifest::parse(text).unwrap().execution.unwrap()
}

fn link(target: &str) -> Kind {
    let target = target.into();
    Kind::Link { target }
}

fn places() -> Places {
    let present = [
        ("/usr", Kind::Directory),
        ("/bin", link("usr/bin")),
        ("/lib64", link("usr/lib64")),
        ("/etc/ld.so.cache", Kind::File),
        ("/usr/lib", Kind::Directory),
        ("/work/docs", Kind::Directory),
        ("/work/README.md", Kind::File),
        ("/work/docs/private", Kind::Directory),
        ("/work/docs/key", Kind::File),
    ];
    Places {
        files: "/plugins/full".into(),
        data: "/state/data/full".into(),
        meeting: "/state/meet/full".into(),
        workspace: Some("/work".into()),
        proxy_port: 3128,
        present: present.map(|(path, kind)| (path.into(), kind)).into(),
    }
}

fn joined(arguments: &[OsString]) -> String {
    let words: Vec<&str> = arguments
        .iter()
        .map(|word| word.to_str().unwrap())
        .collect();
    words.join(" ")
}

#[test]
fn a_manifest_in_our_own_words() {
    let profile = native(&execution(FULL), &places()).unwrap();
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(profile.read, paths(&["/work/docs", "/work/README.md"]));
    assert_eq!(
        profile.hidden,
        paths(&["/work/docs/private", "/work/docs/key"])
    );
    assert_eq!(profile.absent, paths(&["/work/docs/later"]));
    assert!(profile.data);
    let hosts: Vec<String> = profile.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["a.example.com:443", "*.b.example.com:8443"]);
    let limits = (profile.memory.0, profile.cpu_milli, profile.pids);
    assert_eq!(limits, (64 << 20, 250, 9));
    assert_eq!(profile.seccomp, Seccomp::StandardNet);
}

#[test]
fn a_manifest_in_the_words_of_bwrap() {
    let profile = bwrap(&execution(FULL), &places()).unwrap();
    assert_eq!(
        joined(&profile.arguments),
        "--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts \
         --unshare-cgroup --hostname plugin --die-with-parent --new-session --clearenv \
         --cap-drop ALL --uid 1000 --gid 1000 --ro-bind /usr /usr --symlink usr/bin /bin \
         --symlink usr/lib64 /lib64 --ro-bind /etc/ld.so.cache /etc/ld.so.cache --dev /dev \
         --proc /proc --size 67108864 --tmpfs /tmp --ro-bind /plugins/full /plugins/full \
         --ro-bind /work/docs /work/docs --ro-bind /work/README.md /work/README.md \
         --perms 0000 --tmpfs /work/docs/private --remount-ro /work/docs/private \
         --ro-bind /dev/null /work/docs/key --bind /state/data/full /state/data/full \
         --bind /state/meet/full /state/meet/full --remount-ro / \
         --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv TMPDIR /tmp \
         --setenv HOME /state/data/full --chdir /plugins/full --seccomp 3 -- \
         /plugins/full/bin/full --serve"
    );
    assert_eq!(profile.seccomp, Seccomp::StandardNet);
    assert_eq!(profile.hosts.len(), 2);
}

#[test]
fn a_manifest_in_the_words_of_seatbelt() {
    let profile = seatbelt(&execution(FULL), &places()).unwrap();
    let rules = profile
        .text
        .strip_prefix(&seatbelt::ALWAYS.join("\n"))
        .unwrap();
    assert_eq!(
        rules,
        "
(allow file-read* file-map-executable process-exec (subpath (param \"PATH_0\")))
(allow file-read* file-map-executable process-exec (subpath (param \"PATH_1\")))
(allow file-read* file-map-executable process-exec (subpath (param \"PATH_2\")))
(allow file-read* (subpath (param \"PATH_3\")))
(allow file-read* (literal (param \"PATH_4\")))
(deny file-read* (subpath (param \"PATH_5\")))
(deny file-read* (literal (param \"PATH_6\")))
(deny file-read* (literal (param \"PATH_7\")))
(allow file-read* file-write* (subpath (param \"PATH_8\")))
(allow file-read* file-write* (subpath (param \"PATH_9\")))
(allow network-bind (local unix-socket (subpath (param \"PATH_9\"))))
(allow network-inbound (local unix-socket (subpath (param \"PATH_9\"))))
(allow network-outbound (remote unix-socket (subpath (param \"PATH_9\"))))
(allow file-read-metadata (literal (param \"PATH_10\")))
(allow file-read-metadata (literal (param \"PATH_11\")))
(allow file-read-metadata (literal (param \"PATH_12\")))
(allow file-read-metadata (literal (param \"PATH_13\")))
(allow file-read-metadata (literal (param \"PATH_14\")))
(allow file-read-metadata (literal (param \"PATH_15\")))
(allow file-read-metadata (literal (param \"PATH_16\")))
(allow file-read-metadata (literal (param \"PATH_3\")))
(allow network-outbound (remote tcp \"localhost:3128\"))
"
    );
    let values: Vec<&str> = profile
        .parameters
        .iter()
        .map(|(_, value)| &**value)
        .collect();
    assert_eq!(
        values,
        [
            "/usr/lib",
            "/bin",
            "/plugins/full",
            "/work/docs",
            "/work/README.md",
            "/work/docs/private",
            "/work/docs/key",
            "/work/docs/later",
            "/state/data/full",
            "/state/meet/full",
            "/",
            "/plugins",
            "/state",
            "/state/data",
            "/state/meet",
            "/usr",
            "/work",
        ]
    );
    let arguments = joined(&profile.arguments());
    assert!(arguments.starts_with("/usr/bin/sandbox-exec -p (version 1)\n(deny default)\n"));
    assert!(arguments.ends_with(" -D PATH_16=/work -- /plugins/full/bin/full --serve"));
}

#[test]
fn every_seatbelt_filter_has_one_path() {
    let text = seatbelt(&execution(FULL), &places()).unwrap().text;
    for line in text.lines() {
        assert!(line.matches("(param ").count() <= 1, "{line}");
        assert_eq!(
            line.matches('(').count(),
            line.matches(')').count(),
            "{line}"
        );
    }
}

#[test]
fn hosts_keep_their_ports_and_nothing_else_is_a_way_out() {
    let (full, places) = (execution(FULL), places());
    let bwrap = bwrap(&full, &places).unwrap();
    assert!(bwrap.arguments.contains(&"--unshare-net".into()));
    assert!(!bwrap.arguments.contains(&"--share-net".into()));
    let seatbelt = seatbelt(&full, &places).unwrap();
    let tcp: Vec<&str> = seatbelt
        .text
        .lines()
        .filter(|line| line.contains("tcp"))
        .collect();
    assert_eq!(
        tcp,
        ["(allow network-outbound (remote tcp \"localhost:3128\"))"]
    );
    assert!(!seatbelt.text.contains("network*") && !seatbelt.text.contains("\"*:"));
    for hosts in [&bwrap.hosts, &seatbelt.hosts] {
        assert!(hosts.iter().all(|host| host.port().is_some()));
    }
}

#[test]
fn an_empty_manifest_opens_nothing() {
    let empty = execution(EMPTY);
    let profile = native(&empty, &places()).unwrap();
    assert!(profile.read.is_empty() && profile.hosts.is_empty() && !profile.data);
    assert_eq!(profile.seccomp, Seccomp::Standard);
    let arguments = joined(&bwrap(&empty, &places()).unwrap().arguments);
    for part in ["/work", "/state/data", "3128"] {
        assert!(!arguments.contains(part), "{part}");
    }
    assert!(
        arguments.ends_with("--setenv HOME /tmp --chdir /plugins/full --seccomp 3 -- node x.js")
    );
    let seatbelt = seatbelt(&empty, &places()).unwrap();
    assert!(!seatbelt.text.contains("tcp"));
    let values = seatbelt.parameters.iter().map(|(_, value)| value.as_str());
    assert!(
        !values
            .clone()
            .any(|value| value.starts_with("/work") || value == "/state/data/full")
    );
}

#[test]
fn only_what_a_machine_has_is_bound() {
    let mut bare = places();
    bare.present.remove(Path::new("/lib64"));
    let arguments = joined(&bwrap(&execution(EMPTY), &bare).unwrap().arguments);
    assert!(arguments.contains("/usr /usr") && !arguments.contains("/lib64"));
    bare.present.clear();
    let arguments = joined(&bwrap(&execution(FULL), &bare).unwrap().arguments);
    assert!(!arguments.contains("/usr /usr") && !arguments.contains("/work"));
}

#[test]
fn another_system_is_an_error() {
    assert_eq!("linux".parse(), Ok(System::Linux));
    assert_eq!("macos".parse(), Ok(System::Macos));
    for name in ["", "windows", "freebsd", "Linux", "linux "] {
        let error = name.parse::<System>().unwrap_err();
        assert_eq!(
            error,
            ProfileError::System {
                name: name.to_owned()
            }
        );
    }
}

#[test]
fn what_is_not_what_the_manifest_says_is_refused() {
    for (path, kind, expected) in [
        ("/work/docs", Kind::File, "names a file, not a directory"),
        (
            "/work/README.md",
            Kind::Directory,
            "names a directory, not a file",
        ),
        ("/work/docs", link("/"), "is a link"),
        ("/work/docs/private", link("elsewhere"), "is a link"),
    ] {
        let mut places = places();
        places.present.insert(path.into(), kind);
        let full = execution(FULL);
        for error in [
            native(&full, &places).unwrap_err(),
            bwrap(&full, &places).unwrap_err(),
            seatbelt(&full, &places).unwrap_err(),
        ] {
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
    let mut odd = places();
    odd.present.insert("/bin".into(), link("--bind"));
    assert!(bwrap(&execution(EMPTY), &odd).is_err());
}

#[test]
fn a_place_that_holds_more_than_the_plugin_s_is_refused() {
    type Change = fn(&mut Places);
    let changes: [Change; 9] = [
        |places| places.files = "/".into(),
        |places| places.workspace = Some("/".into()),
        |places| places.data = "/usr/share/x".into(),
        |places| places.meeting = "/tmp".into(),
        |places| places.data = "/plugins".into(),
        |places| places.data = "/plugins/full".into(),
        |places| places.meeting = "/work".into(),
        |places| places.files = "plugins/full".into(),
        |places| places.files = "--bind".into(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut places = places();
        change(&mut places);
        let empty = execution(EMPTY);
        assert!(native(&empty, &places).is_err(), "{index}");
        assert!(bwrap(&empty, &places).is_err(), "{index}");
        assert!(seatbelt(&empty, &places).is_err(), "{index}");
    }
}

/// Names that mean something to a shell, to `bwrap` or to Seatbelt.
const HOSTILE: &[&str] = &[
    "--bind",
    "a b",
    "a\nb",
    "a\"b",
    "a'b",
    "a\\b",
    "$(id)",
    "*",
    "-",
    "\")(allow default)(\"",
    "(param \"PATH_0\")",
    "a;b",
    "PATH_0=x",
    "%00",
    "\u{202e}x",
    ")",
    "--ro-bind x x",
];

#[test]
fn hostile_places_stay_one_argument() {
    let plain = bwrap(&execution(FULL), &places()).unwrap().arguments;
    let text = seatbelt(&execution(FULL), &places()).unwrap().text;
    for name in HOSTILE {
        let mut places = places();
        places.files = Path::new("/plugins").join(name);
        let files = places.files.clone();
        let arguments = bwrap(&execution(FULL), &places).unwrap().arguments;
        let expected: Vec<OsString> = plain
            .iter()
            .map(|word| match word.to_str().unwrap() {
                "/plugins/full" => files.clone().into_os_string(),
                "/plugins/full/bin/full" => files.join("bin/full").into_os_string(),
                _ => word.clone(),
            })
            .collect();
        assert_eq!(arguments, expected);
        let hostile = seatbelt(&execution(FULL), &places).unwrap();
        assert_eq!(hostile.text, text, "the rules do not depend on names");
        assert!(
            hostile
                .parameters
                .iter()
                .any(|(_, value)| OsStr::new(value) == files)
        );
    }
}

#[cfg(unix)]
#[test]
fn a_name_that_is_no_text_is_refused_where_text_is_needed() {
    use std::os::unix::ffi::OsStrExt;
    let mut places = places();
    places.data = Path::new("/state").join(OsStr::from_bytes(b"a\xffb"));
    assert!(bwrap(&execution(FULL), &places).is_ok());
    let refused = seatbelt(&execution(FULL), &places);
    assert!(matches!(refused, Err(ProfileError::NotText { .. })));
    places.data = Path::new("/state").join(OsStr::from_bytes(b"a\0b"));
    assert!(matches!(
        bwrap(&execution(FULL), &places),
        Err(ProfileError::Path { .. })
    ));
}

#[test]
fn vectors_are_made_fresh() {
    let (full, places) = (execution(FULL), places());
    let mut first = bwrap(&full, &places).unwrap().arguments;
    let second = bwrap(&full, &places).unwrap().arguments;
    assert_eq!(first, second);
    first.push("--bind".into());
    first[0] = "--share-net".into();
    assert_eq!(bwrap(&full, &places).unwrap().arguments, second);
    let profile = seatbelt(&full, &places).unwrap();
    let mut once = profile.arguments();
    once.clear();
    assert_eq!(
        profile.arguments(),
        seatbelt(&full, &places).unwrap().arguments()
    );
}

#[test]
fn only_a_program_is_started() {
    let text = "name: m1\nversion: 1.0.0\ntype: tool\nengine: \"*\"\napi: 1\nexecution: { tier: wasm, module: a.wasm }\n";
    let module = execution(text);
    assert!(native(&module, &places()).is_ok());
    assert_eq!(
        bwrap(&module, &places()).unwrap_err(),
        ProfileError::NoProgram
    );
    assert_eq!(
        seatbelt(&module, &places()).unwrap_err(),
        ProfileError::NoProgram
    );
}

#[test]
fn the_host_is_told_where_to_look() {
    let looks = looks_at(&execution(FULL), System::Linux, Some(Path::new("/work")));
    for path in ["/lib64", "/work/docs", "/work/gone", "/work/docs/later"] {
        assert!(looks.contains(&path.into()), "{path}");
    }
    let nowhere = looks_at(&execution(FULL), System::Macos, None);
    assert!(
        nowhere
            .iter()
            .all(|path| !path.starts_with("/work") && path != Path::new("/lib64"))
    );
}

proptest! {
    #[test]
    fn no_place_panics_or_becomes_an_option(name in "(/|\\PC|[-.\"() *\n\\\\]){0,20}") {
        let mut places = places();
        places.files = PathBuf::from(&name);
        if let Ok(profile) = bwrap(&execution(EMPTY), &places) {
            prop_assert!(name.starts_with('/'));
            let same = profile.arguments.iter().filter(|word| ***word == *name).count();
            prop_assert!(same >= 3, "source, target and directory");
        }
        let _ = seatbelt(&execution(EMPTY), &places);
        let _ = native(&execution(EMPTY), &places);
    }
}
