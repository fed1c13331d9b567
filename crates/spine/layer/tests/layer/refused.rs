//! What is never merged, planted by commands in the layer.

use fluffy_layer::{LayerKind, Reason};

use crate::support::{Stage, kinds, merge_permit, path};

const PROJECT: &str = "git init -q .; git config user.email a@b; git config user.name A; \
                       mkdir -p src; echo one >src/a; echo x >README; git add .; git commit -qm one";

/// The refusals after a script, as `path reason`.
fn refusals(kind: LayerKind, script: &str) -> Vec<String> {
    let stage = Stage::new(PROJECT);
    let mut held = stage.create(kind);
    stage.in_layer(&held, script);
    let before = stage.files();
    let plan = held.plan_merge().unwrap();
    let shown = plan.refusals().iter().map(|refusal| {
        assert!(!refusal.reason.sentence().is_empty() && !refusal.reason.fix().is_empty());
        format!("{} {}", refusal.path, refusal.reason.code())
    });
    let shown: Vec<String> = shown.collect();
    if !shown.is_empty() {
        assert!(held.apply(merge_permit(), &plan).is_err());
        assert_eq!(
            stage.files(),
            before,
            "nothing of a refused layer is merged"
        );
    }
    shown
}

#[track_caller]
fn refuses(script: &str, expected: &[&str]) {
    for kind in kinds() {
        assert_eq!(refusals(kind, script), expected, "{kind:?}: {script}");
    }
}

#[test]
fn links_that_leave_are_refused() {
    refuses("ln -s /etc/passwd l", &["l link-leaves-tree"]);
    refuses("ln -s ../x src/l", &[]);
    refuses("ln -s ../../x src/l", &["src/l link-leaves-tree"]);
    refuses(
        "ln -s .. src/up; ln -s src/up/../y l",
        &["l link-leaves-tree"],
    );
    refuses("ln -s README l; ln -s l m", &[]);
    refuses(
        "ln -s b a; ln -s a b",
        &["a link-leaves-tree", "b link-leaves-tree"],
    );
}

#[test]
fn special_files_and_modes_are_refused() {
    refuses("mkfifo p", &["p special-file"]);
    refuses("cp /bin/true t; chmod 4755 t", &["t special-mode"]);
    refuses("cp /bin/true t; chmod 2755 t", &["t special-mode"]);
    refuses("mkdir d; chmod 1777 d", &["d special-mode"]);
    refuses("chmod 4755 src/a", &["src/a special-mode"]);
    assert_eq!(Reason::SpecialFile.code(), "special-file");
}

#[test]
fn hooks_are_refused_at_any_depth() {
    refuses(
        "echo x >.git/hooks/pre-commit",
        &[".git/hooks/pre-commit git-hook"],
    );
    refuses(
        "mkdir -p a/b/.git/hooks; echo x >a/b/.git/hooks/post-checkout",
        &["a/b/.git/hooks/post-checkout git-hook"],
    );
    refuses(
        "mkdir -p .git/modules/m/hooks; echo x >.git/modules/m/hooks/update",
        &[".git/modules/m/hooks/update git-hook"],
    );
    refuses(
        "rm .git/hooks/pre-push.sample",
        &[".git/hooks/pre-push.sample git-hook"],
    );
    refuses(
        "rm -r .git/hooks; ln -s ../src .git/hooks; rm -f .git/hooks.sample",
        &{
            // Every sample that went with the directory, and the link itself.
            let stage = Stage::new(PROJECT);
            let mut expected: Vec<String> = stage
                .files()
                .keys()
                .filter(|path| path.starts_with(".git/hooks/"))
                .map(|path| format!("{path} git-hook"))
                .collect();
            expected.push(".git/hooks git-pointer".to_owned());
            expected.sort();
            expected
        }
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>(),
    );
}

#[test]
fn the_samples_of_a_fresh_clone_are_no_hooks() {
    // As if it came from a server: a path as its origin is refused too.
    const CLONE: &str = "git clone -q --no-hardlinks . copy; \
                         git -C copy config remote.origin.url https://h/x";
    refuses(CLONE, &[]);
    // In a directory that was there, a hook could lead to one.
    refuses(
        "echo x >.git/hooks/new.sample",
        &[".git/hooks/new.sample git-hook"],
    );
    refuses(
        &format!("{CLONE}; cd copy/.git/hooks; mv pre-commit.sample pre-commit"),
        &["copy/.git/hooks/pre-commit git-hook"],
    );
    refuses(
        "mkdir -p a/.git/hooks/x.sample; echo x >a/.git/hooks/x.sample/pre-commit",
        &["a/.git/hooks/x.sample/pre-commit git-hook"],
    );
}

#[test]
fn settings_that_run_something_are_refused() {
    for setting in [
        "core.fsmonitor /tmp/x",
        "core.hooksPath src",
        "filter.x.smudge x",
        "alias.st '!x'",
        "include.path ../src/a",
        "diff.external x",
        "remote.o.uploadpack x",
    ] {
        refuses(
            &format!("git config {setting}"),
            &[".git/config git-config"],
        );
    }
    refuses(
        "git config user.name B; git config remote.o.url https://h/x",
        &[],
    );
    refuses(
        "printf '[CORE]\\n\\tFsMonitor = x\\n' >>.git/config",
        &[".git/config git-config"],
    );
    refuses(
        "printf '[core]\\n\\tfsmonitor = x\\n' >.git/config.worktree",
        &[".git/config.worktree git-config"],
    );
    refuses(
        "printf '[core' >>.git/config",
        &[".git/config git-config-unreadable"],
    );
    refuses(
        "printf '[submodule \"a\"]\\n path = a\\n url = ext::x\\n' >.gitmodules",
        &[".gitmodules git-config"],
    );
}

/// Each side is harmless by itself; put together line by line they are not.
#[test]
fn settings_of_both_sides_are_never_mixed() {
    for kind in kinds() {
        let stage =
            Stage::new("git init -q .; printf '[color]\\n\\n\\n\\n\\tx = 1\\n' >.git/config");
        let held = stage.create(kind);
        stage.in_layer(&held, "echo '\tfsmonitor = evil' >>.git/config");
        stage.in_project("sed -i 's/color/core/' .git/config");
        let plan = held.plan_merge().unwrap();
        assert!(!plan.is_clear(), "{:#?}", plan.steps());
    }
}

#[test]
fn pointers_to_repositories_elsewhere_are_refused() {
    refuses(
        "mkdir sub; echo 'gitdir: ../evil' >sub/.git",
        &["sub/.git git-pointer"],
    );
    refuses(
        "mkdir sub; ln -s ../src sub/.git",
        &["sub/.git git-pointer"],
    );
    refuses(
        "echo ../src >.git/commondir",
        &[".git/commondir git-pointer"],
    );
    refuses(
        "echo /tmp >.git/objects/info/alternates",
        &[".git/objects/info/alternates git-pointer"],
    );
}

#[test]
fn a_directory_that_git_takes_for_a_repository_is_one() {
    refuses(
        "mkdir -p evil/objects evil/refs evil/hooks; echo ref: refs/heads/x >evil/HEAD; \
         printf '[core]\\n\\tfsmonitor = x\\n' >evil/config; echo x >evil/hooks/post-checkout",
        &[
            "evil/config git-config",
            "evil/hooks git-hook",
            "evil/hooks/post-checkout git-hook",
        ],
    );
    refuses("mkdir -p objects refs; echo x >config", &[]);
}

#[test]
fn names_that_mean_something_else_elsewhere_are_refused() {
    refuses(
        "mkdir .GIT; echo x >.GIT/config",
        &[
            ".GIT git-lookalike",
            ".GIT name-collision",
            ".GIT/config git-config-unreadable",
            ".GIT/config git-lookalike",
        ],
    );
    refuses(
        "echo x >git~1",
        &["git~1 git-pointer", "git~1 git-lookalike"],
    );
    refuses("echo x >readme", &["readme name-collision"]);
    refuses(
        "echo x >new; echo y >NEW",
        &["NEW name-collision", "new name-collision"],
    );
    refuses("mv README readme", &[]);
    refuses(
        "echo x >\"$(printf 'n\\303\\244me')\"; echo x >\"$(printf 'na\\314\\210me')\"",
        &["na\u{308}me name-collision", "n\u{e4}me name-collision"],
    );
    refuses(
        "echo x >\"$(printf 'a\\nb')\"",
        &["a\\x0ab unspeakable-name"],
    );
    refuses("echo x >'a\\b'", &["a\\\\b unspeakable-name"]);
}

#[test]
fn a_hard_link_out_of_the_layer_is_refused() {
    for kind in kinds() {
        let stage = Stage::new("echo one >a");
        let held = stage.create(kind);
        stage.in_layer(&held, "echo x >mine; ln mine also");
        assert!(
            held.plan_merge().unwrap().is_clear(),
            "both names are inside"
        );
        let content = match held.layer().directories() {
            fluffy_layer::LayerDirectories::Overlay { upper, .. } => upper,
            fluffy_layer::LayerDirectories::Copy { tree } => tree,
        };
        let secret = stage.home().join("secret");
        std::fs::write(&secret, "canary").unwrap();
        std::fs::hard_link(&secret, content.join("taken")).unwrap();
        let plan = held.plan_merge().unwrap();
        let shown: Vec<String> = plan
            .refusals()
            .iter()
            .map(|refusal| format!("{} {}", refusal.path, refusal.reason.code()))
            .collect();
        assert_eq!(shown, ["taken hard-link-outside"]);
    }
}

#[test]
fn ordinary_git_work_is_merged() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        stage.in_layer(
            &held,
            "echo two >>src/a; git commit -qam two; git checkout -qb topic; git tag v1",
        );
        assert!(crate::support::merge(held).retired);
        stage.in_project(
            "test \"$(git log --oneline | wc -l)\" = 2; git fsck --strict; git diff --exit-code",
        );
    }
}

#[test]
fn what_cannot_be_read_is_refused_and_hides_nothing_else() {
    for kind in kinds() {
        let stage = Stage::new("mkdir old; echo o >old/o");
        let held = stage.create(kind);
        stage.in_layer(
            &held,
            "mkdir d; echo x >d/x; chmod 000 d; echo f >f; chmod 000 f; echo n >n; chmod 000 old",
        );
        let changes = held.changes().unwrap();
        assert!(changes.list.iter().any(|change| change.path == path("n")));
        let gone = |change: &&fluffy_layer::Change| change.path == path("old/o");
        assert!(
            changes.list.iter().find(gone).is_none(),
            "unreadable is not gone"
        );
        let plan = held.plan_merge().unwrap();
        let unreadable: Vec<String> = plan
            .refusals()
            .iter()
            .filter(|refusal| refusal.reason == Reason::Unreadable)
            .map(|refusal| refusal.path.to_string())
            .collect();
        // Root reads everything, and merges it with its modes.
        let expected: &[&str] = match rustix::process::geteuid().is_root() {
            true => &[],
            false => &["d", "f", "old"],
        };
        assert_eq!(unreadable, expected, "{kind:?}");
    }
}
