//! The folders of a plugin, seen from inside and outside.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use fluffy_contract::isolation::{Child as _, Command, PluginMount, SandboxSpec};
use fluffy_sandbox::plan::Engine;

use crate::kit::{Kit, create, run, shell, text};

async fn kit(engine: Engine) -> (Kit, SandboxSpec) {
    let kit = Kit::with(engine, |settings| {
        settings.plugins = Some(settings.state.join("plugins"));
    })
    .await;
    let below = |name: &str| kit.path("state/plugins").join(name);
    for name in ["one/files", "one/data", "two/files", "m/1"] {
        std::fs::create_dir_all(below(name)).unwrap();
    }
    for name in ["one/files/hello", "two/files/secret"] {
        std::fs::write(below(name), "hello").unwrap();
    }
    let spec = SandboxSpec {
        template: "plugin".to_owned(),
        plugin: Some(PluginMount {
            files: below("one/files"),
            data: Some(below("one/data")),
            meeting: Some(below("m/1")),
        }),
        ..SandboxSpec::default()
    };
    (kit, spec)
}

#[tokio::test]
async fn a_plugin_has_its_own_folders_and_no_others() {
    for engine in [Engine::Native, Engine::Bwrap, Engine::Reduced] {
        let (kit, spec) = kit(engine).await;
        let plugins = kit.path("state/plugins");
        let sandbox = kit.launcher.create(create(), spec).await.unwrap();
        let script = format!(
            "cd {}; cat one/files/hello && echo kept > one/data/kept && echo met > m/1/met; \
             echo bad > one/files/hello; rm -f one/files/hello; echo new > one/files/new; \
             cat two/files/secret; cat {}/project/hello.txt; exit 0",
            plugins.display(),
            kit.root.path().display(),
        );
        let finished = shell(&sandbox, &script).await;
        assert_eq!(text(&finished.stdout), "hello", "{engine:?}: {finished:?}");
        sandbox.clean().await.unwrap();
        let read = |name: &str| std::fs::read_to_string(plugins.join(name)).unwrap();
        assert_eq!(read("one/files/hello"), "hello");
        assert_eq!(
            (read("one/data/kept"), read("m/1/met")),
            ("kept\n".into(), "met\n".into())
        );
        assert!(!plugins.join("one/files/new").exists());
    }
}

#[tokio::test]
async fn a_socket_in_its_meeting_folder_is_met_from_outside() {
    const SERVER: &str = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.bind(sys.argv[1])\n\
        s.listen()\n\
        c, _ = s.accept()\n\
        c.send(c.recv(9)[::-1])\n";
    let (kit, spec) = kit(Engine::Native).await;
    let socket = kit.path("state/plugins/m/1/s");
    let sandbox = kit.launcher.create(create(), spec).await.unwrap();
    let at = socket.to_str().unwrap();
    let command = Command::new(["python3", "-c", SERVER, at]);
    let mut child = sandbox.run(run(), command).await.unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    stream.write_all(b"hello").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "olleh");
    child.wait().await.unwrap();
    sandbox.clean().await.unwrap();
}

#[tokio::test]
async fn parts_of_the_project_are_shown_without_what_is_to_stay_unread() {
    for engine in [Engine::Native, Engine::Bwrap] {
        let (kit, spec) = kit(engine).await;
        let project = kit.path("project");
        std::fs::create_dir_all(project.join("docs/deep")).unwrap();
        for name in ["docs/a", "docs/.env", "docs/deep/key", "other"] {
            std::fs::write(project.join(name), "read\n").unwrap();
        }
        let shown = SandboxSpec {
            read: vec![project.join("docs")],
            hidden: vec![project.join("docs/.env"), project.join("docs/deep")],
            ..spec.clone()
        };
        let all = SandboxSpec {
            read: vec![project.join("docs")],
            ..spec
        };
        let script = format!(
            "cd {}; cat docs/a docs/.env docs/deep/key other; true",
            project.display()
        );
        for (spec, lines) in [(shown, 1), (all, 3)] {
            let sandbox = kit.launcher.create(create(), spec).await.unwrap();
            let finished = shell(&sandbox, &script).await;
            assert_eq!(
                text(&finished.stdout),
                "read\n".repeat(lines),
                "{engine:?} {finished:?}"
            );
            sandbox.clean().await.unwrap();
        }
    }
}

/// A link in the project, or in a plugin's place, shows nothing of elsewhere.
#[tokio::test]
async fn what_is_shown_never_leads_through_a_link() {
    let (kit, spec) = kit(Engine::Native).await;
    let (project, outside) = (kit.path("project"), kit.path("outside"));
    std::fs::create_dir_all(outside.join("deep")).unwrap();
    std::fs::create_dir(project.join("docs")).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(&outside, project.join("link")).unwrap();
    for name in ["link", "link/deep", "link/secret"] {
        let shown = SandboxSpec {
            read: vec![project.join(name)],
            ..spec.clone()
        };
        let refused = kit.launcher.create(create(), shown).await.unwrap_err();
        let said = format!("{refused:?}");
        assert!(said.contains("leads through a link"), "{name}: {said}");
    }
    let folder = kit.path("state/plugins/one/data");
    std::fs::remove_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&outside, &folder).unwrap();
    assert!(kit.launcher.create(create(), spec.clone()).await.is_err());
    // The control: without a link on the way it is shown.
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let shown = SandboxSpec {
        read: vec![project.join("docs")],
        ..spec
    };
    let sandbox = kit.launcher.create(create(), shown).await.unwrap();
    sandbox.clean().await.unwrap();
}
