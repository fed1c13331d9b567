//! The wall over real children: what it keeps out, what it lets through.

use super::*;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Runs in a child that the wall is put over; the answer is its exit code.
fn behind(wall: &Wall, attempt: impl FnOnce() -> i32) -> i32 {
    #[expect(
        unsafe_code,
        reason = "a wall cannot be taken down again, so a child it is"
    )]
    // SAFETY: the child makes system calls and leaves without unwinding.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let code = match wall.enforce() {
                Ok(()) => attempt(),
                Err(_) => 255,
            };
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status), "ended with {status:x}");
        libc::WEXITSTATUS(status)
    }
}

fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(254),
    }
}

fn inside(read: &Path, write: &Path) -> Wall {
    Wall::prepare(&Reach {
        read: vec![read.to_owned(), "/usr".into(), "/is/not/there".into()],
        write: vec![write.to_owned(), "/dev".into()],
    })
    .unwrap()
}

#[test]
fn what_is_not_named_cannot_be_reached() {
    let root = tempfile::tempdir().unwrap();
    let [read, write, other] = ["read", "write", "other"].map(|name| root.path().join(name));
    for directory in [&read, &write, &other] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("file"), "text").unwrap();
    }
    symlink(other.join("file"), write.join("link")).unwrap();
    let wall = inside(&read, &write);
    let may = |attempt: &dyn Fn() -> i32| behind(&wall, attempt);

    assert_eq!(may(&|| errno(std::fs::read(read.join("file")))), 0);
    assert_eq!(may(&|| errno(std::fs::read(write.join("file")))), 0);
    assert_eq!(may(&|| errno(std::fs::write(write.join("new"), "x"))), 0);
    assert_eq!(may(&|| errno(std::fs::create_dir(write.join("deep")))), 0);
    let moved = || errno(std::fs::rename(write.join("new"), write.join("deep/new")));
    assert_eq!(may(&moved), 0);

    let denied = libc::EACCES;
    assert_eq!(may(&|| errno(std::fs::read(other.join("file")))), denied);
    assert_eq!(may(&|| errno(std::fs::read(write.join("link")))), denied);
    assert_eq!(may(&|| errno(std::fs::read("/etc/passwd"))), denied);
    assert_eq!(
        may(&|| errno(std::fs::write(read.join("file"), "x"))),
        denied
    );
    assert_eq!(
        may(&|| errno(std::fs::remove_file(read.join("file")))),
        denied
    );
    assert_eq!(may(&|| errno(std::fs::read_dir(&other))), denied);
    let out = || errno(std::fs::rename(write.join("file"), other.join("x")));
    assert!([denied, libc::EXDEV].contains(&may(&out)));
    let linked = || errno(std::fs::hard_link(other.join("file"), write.join("x")));
    assert!([denied, libc::EXDEV].contains(&may(&linked)));
    assert_eq!(std::fs::read(other.join("file")).unwrap(), b"text");
}

#[test]
fn devices_are_never_made() {
    let root = tempfile::tempdir().unwrap();
    let wall = inside(root.path(), root.path());
    let path = std::ffi::CString::new(root.path().join("null").to_str().unwrap()).unwrap();
    let code = behind(&wall, || {
        #[expect(unsafe_code, reason = "no safe function makes devices")]
        // SAFETY: the path ends with a nought and lives until here.
        let made =
            unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) };
        if made == 0 {
            0
        } else {
            errno::<()>(Err(io::Error::last_os_error()))
        }
    });
    assert!([libc::EACCES, libc::EPERM].contains(&code), "{code}");
}

#[test]
fn terminals_and_null_work_as_devices() {
    let root = tempfile::tempdir().unwrap();
    let wall = inside(root.path(), root.path());
    assert_eq!(behind(&wall, || errno(std::fs::write("/dev/null", "x"))), 0);
    // Only the device's own answer, never the wall's.
    let asked = behind(&wall, || {
        let Ok(null) = File::open("/dev/zero") else {
            return 253;
        };
        match rustix::termios::tcgetattr(&null) {
            Ok(_) => 0,
            Err(error) => error.raw_os_error(),
        }
    });
    assert_eq!(asked, libc::ENOTTY);
}

#[test]
fn alone_no_signal_and_no_connection_leaves() {
    let root = tempfile::tempdir().unwrap();
    let reach = Reach {
        read: vec![],
        write: vec![root.path().to_owned()],
    };
    let wall = Wall::prepare_alone(&reach).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    if version() >= Some(4) {
        let connect = || errno(std::net::TcpStream::connect(address));
        assert_eq!(behind(&wall, connect), libc::EACCES);
        let bind = || errno(std::net::TcpListener::bind("127.0.0.1:0"));
        assert_eq!(behind(&wall, bind), libc::EACCES);
    }
    if version() >= Some(6) {
        let parent = rustix::process::getpid();
        let signal = || match rustix::process::test_kill_process(parent) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error(),
        };
        assert_eq!(behind(&wall, signal), libc::EPERM);
    }
}

#[test]
fn what_an_old_kernel_lacks_is_said() {
    assert_eq!(missing(9), Vec::<&str>::new());
    assert_eq!(missing(1).len(), 6);
    assert!(missing(5).iter().any(|what| what.contains("signals")));
    assert!(version().unwrap() >= LEAST_ABI_ALONE);
}

#[test]
fn a_file_can_be_named_too() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let wall = Wall::prepare(&Reach {
        read: vec![],
        write: vec![file.clone()],
    })
    .unwrap();
    assert_eq!(behind(&wall, || errno(std::fs::write(&file, "x"))), 0);
    let beside = root.path().join("other");
    assert_eq!(
        behind(&wall, || errno(std::fs::write(&beside, "x"))),
        libc::EACCES
    );
}

#[test]
fn a_wall_is_extended_by_what_is_new_or_was_mounted_over() {
    let root = tempfile::tempdir().unwrap();
    let [early, late] = ["early", "late"].map(|name| root.path().join(name));
    for directory in [&early, &late] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("file"), "text").unwrap();
    }
    let missing = root.path().join("missing");
    let before = Reach {
        read: vec![early.clone(), missing.clone()],
        write: vec![],
    };
    let mut wall = Wall::prepare(&before).unwrap();
    let reads = |wall: &Wall, path: &Path| behind(wall, || errno(std::fs::read(path.join("file"))));
    assert_eq!(reads(&wall, &early), 0);
    assert_eq!(reads(&wall, &late), libc::EACCES);
    // As a mount would: another directory at a path that had a rule, and one
    // where there was none.
    std::fs::rename(&early, root.path().join("covered")).unwrap();
    for directory in [&early, &missing] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("file"), "text").unwrap();
    }
    let after = Reach {
        read: vec![early.clone(), missing.clone()],
        write: vec![late.clone()],
    };
    wall.extend(&after, &[]).unwrap();
    assert_eq!(reads(&wall, &early), libc::EACCES);
    wall.extend(&after, &[&early]).unwrap();
    for path in [&early, &missing, &late] {
        assert_eq!(reads(&wall, path), 0, "{path:?}");
    }
    let write = |wall: &Wall| behind(wall, || errno(std::fs::write(late.join("new"), "x")));
    assert_eq!(write(&wall), 0);
    // Less than before: nothing of the old wall may stay open.
    let less = Reach {
        read: vec![late.clone()],
        write: vec![],
    };
    wall.extend(&less, &[]).unwrap();
    assert_eq!(reads(&wall, &early), libc::EACCES);
    assert_eq!(write(&wall), libc::EACCES);
    assert_eq!(reads(&wall, &late), 0);
}
