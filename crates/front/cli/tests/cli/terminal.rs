//! `fluffy sandbox run` at a terminal: it has one of its own, ours comes back.
//!
//! `script` of util-linux is the terminal, as a person's emulator would be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::site::Site;

/// Runs a shell script at a terminal; everything that was on the screen.
pub(crate) fn at_terminal(site: &Site, script: &str) -> String {
    let file: PathBuf = site.context.home().join("terminal.sh");
    let program = site.context.command().get_program().to_owned();
    let program = Path::new(&program).display().to_string();
    std::fs::write(&file, script.replace("@fluffy", &program)).unwrap();
    let inner = site.context.command();
    let output = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command"])
        .arg(format!("sh {}", file.display()))
        .arg(site.context.home().join("screen"))
        .env_clear()
        .envs(
            inner
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("TERM", "xterm")
        .current_dir(site.context.project())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{screen}");
    screen
}

#[test]
fn a_command_has_a_terminal_of_its_own_size() {
    let site = Site::empty();
    let screen = at_terminal(
        &site,
        "stty rows 33 cols 99\n\
         @fluffy sandbox run -- sh -c 'stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo all'\n\
         stty -a\n",
    );
    assert!(screen.contains("33 99\r\n"), "{screen}");
    assert!(screen.contains("/dev/pts/0\r\n"), "{screen}");
    assert!(screen.contains("all\r\n"), "{screen}");
    // Ours is as it was.
    let after = screen.rsplit("all\r\n").next().unwrap();
    assert!(
        after.contains(" icanon ") && after.contains(" echo "),
        "{after}"
    );
}

#[test]
fn the_terminal_comes_back_however_it_ends() {
    let site = Site::empty();
    for script in ["kill -9 $$", "exit 5", "exec no-such-program"] {
        let screen = at_terminal(
            &site,
            &format!("@fluffy sandbox run -- sh -c '{script}'\necho code $?\nstty -a\n"),
        );
        assert!(screen.contains("code "), "{screen}");
        assert!(screen.contains(" icanon "), "{script}: {screen}");
    }
}

#[test]
fn a_window_that_changes_is_told_of() {
    let site = Site::empty();
    let screen = at_terminal(
        &site,
        "stty rows 20 cols 70\n\
         terminal=$(tty)\n\
         (until grep -q ready \"$HOME/screen\"; do sleep 0.05; done; stty rows 41 cols 121 < \"$terminal\") &\n\
         @fluffy sandbox run --time 60s -- sh -c 'trap \"stty size; exit 0\" WINCH; echo ready; while :; do sleep 0.05; done'\n",
    );
    assert!(screen.contains("41 121\r\n"), "{screen}");
}
