//! Doors into the kernel that ordinary programs never use.
//!
//! Arguments are chosen so that a call that gets through does no harm: it
//! makes an object that is closed at once, or fails on a null pointer.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use super::{checked, owned};

/// Makes an io_uring instance.
pub(crate) fn io_uring_setup() -> Result<OwnedFd, Errno> {
    let mut parameters = [0_u8; 120];
    // SAFETY: `io_uring_params` has 120 bytes, all of which may be zero.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, parameters.as_mut_ptr()) })
}

/// Makes a small BPF array map.
pub(crate) fn bpf_map_create() -> Result<OwnedFd, Errno> {
    const ARRAY: u32 = 2;
    // map_type, key_size, value_size, max_entries, then zeros.
    let mut attribute = [0_u32; 32];
    for (slot, value) in attribute.iter_mut().zip([ARRAY, 4, 4, 1]) {
        *slot = value;
    }
    // SAFETY: command 0 is BPF_MAP_CREATE; it reads the 128 bytes given.
    owned(unsafe { libc::syscall(libc::SYS_bpf, 0, attribute.as_ptr(), 128) })
}

/// Loads a socket filter of two instructions.
pub(crate) fn bpf_program_load() -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        rest: [u64; 13],
    }
    // r0 = 0; exit
    let program: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
    let license = c"MIT";
    let load = Load {
        kind: 1,
        count: 2,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 13],
    };
    // SAFETY: command 5 is BPF_PROG_LOAD; both pointers outlive the call.
    owned(unsafe { libc::syscall(libc::SYS_bpf, 5, &raw const load, 128) })
}

/// Opens a userfaultfd for every fault, or at least for its own.
pub(crate) fn userfaultfd() -> Result<OwnedFd, Errno> {
    const OWN_FAULTS: i32 = 1;
    // SAFETY: takes flags only.
    let open = |flags: i32| owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) });
    open(libc::O_CLOEXEC).or_else(|_| open(libc::O_CLOEXEC | OWN_FAULTS))
}

/// Opens a counter on this process.
pub(crate) fn perf_event_open() -> Result<OwnedFd, Errno> {
    const SOFTWARE: u32 = 1;
    const SIZE: u32 = 128;
    // Without the kernel and the hypervisor, which fewer machines forbid.
    const USER_ONLY: u32 = (1 << 5) | (1 << 6);
    let mut attribute = [0_u32; 32];
    let start = [SOFTWARE, SIZE, 0, 0, 0, 0, 0, 0, 0, 0, USER_ONLY];
    for (slot, value) in attribute.iter_mut().zip(start) {
        *slot = value;
    }
    // SAFETY: the attribute says its own size, which it has.
    owned(unsafe { libc::syscall(libc::SYS_perf_event_open, attribute.as_ptr(), 0, -1, -1, 0) })
}

/// Asks to load a kernel with flags that do not exist.
pub(crate) fn kexec_load() -> Result<(), Errno> {
    let none = std::ptr::null::<u8>();
    // SAFETY: no segments; the flags are invalid, so nothing is loaded.
    checked(unsafe { libc::syscall(libc::SYS_kexec_load, 0, 0, none, 0xffff_ffff_u64) })?;
    Ok(())
}

/// Asks to load a module that has no bytes.
pub(crate) fn init_module() -> Result<(), Errno> {
    let none = std::ptr::null::<u8>();
    // SAFETY: an empty image at a null address; the kernel copies nothing.
    checked(unsafe { libc::syscall(libc::SYS_init_module, none, 0, c"".as_ptr()) })?;
    Ok(())
}

/// Asks for a restart with numbers that mean none.
pub(crate) fn reboot_with_wrong_magic() -> Result<(), Errno> {
    // SAFETY: with magic numbers of zero the kernel refuses after it has
    // looked at the caller's rights, which is all we ask.
    checked(unsafe { libc::syscall(libc::SYS_reboot, 0, 0, 0, 0) })?;
    Ok(())
}

/// Opens a watch on accesses of other processes.
pub(crate) fn fanotify() -> Result<OwnedFd, Errno> {
    let open = |flags: u32| {
        // SAFETY: takes flags only.
        owned(unsafe { libc::syscall(libc::SYS_fanotify_init, flags, libc::O_RDONLY) })
    };
    open(libc::FAN_CLASS_CONTENT).or_else(|_| open(libc::FAN_REPORT_FID))
}

/// Reads the kernel's log.
pub(crate) fn kernel_log() -> Result<usize, Errno> {
    const READ_ALL: i32 = 3;
    let mut buffer = [0_u8; 512];
    // SAFETY: the buffer has 512 bytes, and says so.
    let read =
        checked(unsafe { libc::syscall(libc::SYS_syslog, READ_ALL, buffer.as_mut_ptr(), 512) })?;
    usize::try_from(read).map_err(|_| Errno::RANGE)
}

/// Opens the file with a guessed inode number, past all paths.
pub(crate) fn open_by_handle(mount: &OwnedFd, inode: u32) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        inode: u32,
        generation: u32,
    }
    let handle = Handle {
        bytes: 8,
        kind: 1,
        inode,
        generation: 0,
    };
    // SAFETY: the handle says its own size, which it has.
    owned(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const handle,
            libc::O_RDONLY,
        )
    })
}

/// Attaches a copy of a tree of mounts to a descriptor.
pub(crate) fn open_tree_clone(path: &CStr) -> Result<OwnedFd, Errno> {
    const CLONE: i32 = 1;
    const RECURSIVE: i32 = 0x8000;
    let flags = CLONE | RECURSIVE;
    // SAFETY: reads one path.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Fetches the process number by way of the 32-bit table of system calls.
#[cfg(target_arch = "x86_64")]
pub(crate) fn getpid_32_bit() -> Option<i64> {
    let answer: i64;
    // SAFETY: number 20 of the 32-bit table is getpid; it takes nothing and
    // touches no memory. rbx is saved by hand since LLVM keeps it for itself.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") 20_i64 => answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack),
        );
    }
    Some(answer)
}

/// There is no such table on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn getpid_32_bit() -> Option<i64> {
    None
}

/// Fetches the process number by its x32 number.
pub(crate) fn getpid_x32() -> Result<i64, Errno> {
    const X32: libc::c_long = 0x4000_0000;
    // SAFETY: getpid takes nothing.
    checked(unsafe { libc::syscall(X32 | libc::SYS_getpid) })
}

/// Writes an entry into the table of segments.
#[cfg(target_arch = "x86_64")]
pub(crate) fn modify_ldt() -> Result<(), Errno> {
    let mut buffer = [0_u8; 64];
    // SAFETY: function 0 reads the table into the buffer, whose size it gets.
    checked(unsafe { libc::syscall(libc::SYS_modify_ldt, 0, buffer.as_mut_ptr(), 64) })?;
    Ok(())
}

/// There is no such table on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn modify_ldt() -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

/// Asks for access to the ports of devices.
#[cfg(target_arch = "x86_64")]
pub(crate) fn io_ports() -> Result<(), Errno> {
    // SAFETY: port 0x80 is the diagnostic port; nothing is written to it.
    checked(unsafe { libc::syscall(libc::SYS_ioperm, 0x80, 1, 1) })?;
    Ok(())
}

/// There are no such ports on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn io_ports() -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

/// Makes a device node.
pub(crate) fn make_device(path: &Path, major: u32, minor: u32) -> Result<(), Errno> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    mknodat(
        CWD,
        path,
        FileType::BlockDevice,
        Mode::RUSR | Mode::WUSR,
        makedev(major, minor),
    )
}
