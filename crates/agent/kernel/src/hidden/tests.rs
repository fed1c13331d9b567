//! What is found in real directories, with a policy of one line each.

use std::ffi::OsStr;
use std::fs;

use super::*;

/// A project with these files, each in the directories it needs.
fn project(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    root
}

fn find_up_to(
    root: &Path,
    limit: usize,
    may_read: &dyn Fn(&str) -> bool,
) -> Result<Hidden, FindHiddenError> {
    let view = View::of_project(root).unwrap();
    conclude(
        &find_unread(&view, None, limit, may_read)?,
        root,
        Mounts::Yes,
    )
}

fn find(root: &Path, may_read: &dyn Fn(&str) -> bool) -> Vec<String> {
    let hidden = find_up_to(root, 1_000, may_read).unwrap();
    let below = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
    hidden.paths().iter().map(below).collect()
}

#[test]
fn denied_files_are_hidden_ignored_ones_too_and_git_is_left_out() {
    let files = [
        ".env",
        ".git/.env",
        ".gitignore",
        "src/lib.rs",
        "target/deep/.env",
        "web/.git",
    ];
    let root = project(&files);
    fs::write(root.path().join(".gitignore"), "target\n.env\n").unwrap();
    let found = find(root.path(), &|path| !path.ends_with("/.env"));
    assert_eq!(found, [".env", "target/deep/.env"]);
    assert!(find(root.path(), &|_| true).is_empty());
}

#[test]
fn a_denied_directory_is_hidden_as_a_whole_unless_something_in_it_is_not() {
    let root = project(&[
        "keys/a",
        "keys/deep/b",
        "mixed/open",
        "mixed/shut",
        "src/lib.rs",
    ]);
    let denied = |path: &str| path.starts_with("/keys") || path.starts_with("/mixed");
    let found = find(root.path(), &|path| path == "/mixed/open" || !denied(path));
    assert_eq!(found, ["keys", "mixed/shut"]);
    // Where only what is in it is denied, its names stay to be seen.
    let found = find(root.path(), &|path| !path.starts_with("/keys/"));
    assert_eq!(found, ["keys/a", "keys/deep"]);
    // Nothing is allowed at all: the fewest paths say so.
    assert_eq!(find(root.path(), &|_| false), ["keys", "mixed", "src"]);
}

#[test]
fn another_name_of_a_hidden_file_is_hidden_too() {
    let root = project(&[".env", "src/other", "src/lib.rs"]);
    fs::hard_link(root.path().join(".env"), root.path().join("src/notes.txt")).unwrap();
    fs::hard_link(root.path().join("src/lib.rs"), root.path().join("alias.rs")).unwrap();
    let found = find(root.path(), &|path| path != "/.env");
    assert_eq!(found, [".env", "src/notes.txt"]);
}

#[test]
fn links_are_never_followed_nor_hidden() {
    let root = project(&["src/lib.rs", "keys/id"]);
    std::os::unix::fs::symlink("/etc", root.path().join("out")).unwrap();
    std::os::unix::fs::symlink("keys", root.path().join("secret")).unwrap();
    let found = find(root.path(), &|path| {
        !path.starts_with("/keys") && path != "/secret"
    });
    assert_eq!(found, ["keys"]);
}

#[test]
fn half_a_list_is_none() {
    let root = project(&["a", "b", "c/d"]);
    let refused = find_up_to(root.path(), 3, &|_| true);
    assert!(
        matches!(
            refused,
            Err(FindHiddenError::Unread(FindUnreadError::TooManyEntries {
                limit: 3
            }))
        ),
        "{refused:?}"
    );
    let found = find_up_to(root.path(), 4, &|_| true).unwrap();
    assert_eq!(found.entries(), 4);
}

#[test]
fn what_cannot_be_hidden_is_told() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(OsStr::from_bytes(b".env.\xff")), "x").unwrap();
    fs::write(root.path().join(OsStr::from_bytes(b"odd\xff")), "x").unwrap();
    let refused = find_up_to(root.path(), 9, &|path| !path.starts_with("/.env."));
    assert!(
        matches!(refused, Err(FindHiddenError::Unnameable { .. })),
        "{refused:?}"
    );
    assert!(find(root.path(), &|_| true).is_empty());

    let many = tempfile::tempdir().unwrap();
    for number in 0..=MAX_HIDDEN {
        fs::write(many.path().join(number.to_string()), "x").unwrap();
    }
    let refused = find_up_to(many.path(), 10_000, &|_| false);
    assert!(
        matches!(refused, Err(FindHiddenError::TooManyHidden { .. })),
        "{refused:?}"
    );

    let view = View::of_project(root.path()).unwrap();
    let unread = find_unread(&view, None, 9, &|path| !path.starts_with("/odd")).unwrap();
    let refused = conclude(&unread, root.path(), Mounts::No).unwrap_err();
    assert!(
        matches!(refused, FindHiddenError::NothingHides { .. }),
        "{refused:?}"
    );
    assert!(!refused.fix().is_empty());
}
