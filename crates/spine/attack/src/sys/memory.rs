//! Memory in all the forms in which it can be taken or left behind.

use std::ffi::CStr;

use rustix::io::Errno;

use super::{checked, last_errno};

/// The size of a page on every machine we support.
pub(crate) const PAGE: usize = 4096;

/// Maps `length` bytes for good and writes into every page.
pub(crate) fn map_and_touch(length: usize) -> Result<(), Errno> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping at an address the kernel chooses.
    let address =
        unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
    for offset in (0..length).step_by(PAGE) {
        // SAFETY: the offset is inside the mapping made above.
        unsafe { address.cast::<u8>().add(offset).write_volatile(1) };
    }
    Ok(())
}

/// A System V segment; removed when dropped, unless left behind.
#[derive(Debug)]
pub(crate) struct Segment {
    id: i32,
    abandoned: bool,
}

impl Segment {
    /// Makes a segment that everybody may read.
    pub(crate) fn create(key: i32, size: usize) -> Result<Self, Errno> {
        // SAFETY: takes numbers only.
        let id = unsafe { libc::shmget(key, size, libc::IPC_CREAT | libc::IPC_EXCL | 0o666) };
        if id == -1 {
            return Err(last_errno());
        }
        Ok(Self {
            id,
            abandoned: false,
        })
    }

    /// Its number.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// Leaves it behind on purpose.
    pub(crate) fn abandon(mut self) {
        self.abandoned = true;
    }

    /// Writes into every page of it, with `text` at the start.
    pub(crate) fn fill(&self, size: usize, text: &[u8]) -> Result<(), Errno> {
        let address = attach(self.id, 0)?;
        for offset in (0..size).step_by(PAGE) {
            // SAFETY: the offset is inside the segment of this size.
            unsafe { address.add(offset).write_volatile(1) };
        }
        let length = text.len().min(size);
        // SAFETY: the segment has at least `length` bytes.
        unsafe { address.copy_from_nonoverlapping(text.as_ptr(), length) };
        // SAFETY: detaches what was attached above.
        unsafe { libc::shmdt(address.cast()) };
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.abandoned {
            remove_segment(self.id);
        }
    }
}

/// Reads the beginning of a segment, which holds at least one page.
pub(crate) fn read_segment(id: i32) -> Result<String, Errno> {
    let address = attach(id, libc::SHM_RDONLY)?;
    // SAFETY: segments have whole pages, so 64 bytes can be read.
    let bytes = unsafe { std::slice::from_raw_parts(address, 64) }.to_vec();
    // SAFETY: detaches what was attached above.
    unsafe { libc::shmdt(address.cast()) };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds a segment by its key.
pub(crate) fn find_segment(key: i32) -> Option<i32> {
    // SAFETY: takes numbers only.
    let id = unsafe { libc::shmget(key, 0, 0) };
    (id != -1).then_some(id)
}

/// Removes a segment.
pub(crate) fn remove_segment(id: i32) {
    // SAFETY: IPC_RMID takes no buffer.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

fn attach(id: i32, flags: i32) -> Result<*mut u8, Errno> {
    // SAFETY: the kernel chooses the address.
    let address = unsafe { libc::shmat(id, std::ptr::null(), flags) };
    if address.addr() == usize::MAX {
        return Err(last_errno());
    }
    Ok(address.cast())
}

/// Makes a POSIX message queue that stays.
pub(crate) fn create_queue(name: &CStr) -> Result<(), Errno> {
    let none = std::ptr::null::<libc::mq_attr>();
    // SAFETY: reads the name; no attributes means the defaults.
    let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o666, none) };
    checked(queue.into())?;
    Ok(())
}

/// Removes a message queue; says whether there was one.
pub(crate) fn remove_queue(name: &CStr) -> bool {
    // SAFETY: reads the name.
    unsafe { libc::mq_unlink(name.as_ptr()) == 0 }
}
