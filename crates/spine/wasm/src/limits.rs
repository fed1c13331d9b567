//! What a program may use: while it is compiled, and in each call.
//!
//! Plain numbers, checked elsewhere: [`Bounds`] by `examine` before the
//! compiler sees a byte, [`Limits`] by `meter` and the engine while it runs.
//! Every limit is always on; there is no value that switches one off but
//! `fuel: None`, where the time still holds.

use std::time::Duration;

use fluffy_base::ByteSize;

/// How large a program may be; checked before it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The whole file.
    pub size: ByteSize,
    /// Functions in all its modules.
    pub functions: u32,
    /// The code of one function; compiling costs more than its size times it.
    pub function_size: ByteSize,
    /// Instances it makes of its modules and components, counted from above.
    pub instances: u32,
    /// Memories of all its instances.
    pub memories: u32,
    /// Tables of all its instances.
    pub tables: u32,
}

impl Default for Bounds {
    /// Enough for the largest components people build (Python in 18 MB).
    fn default() -> Self {
        Self {
            size: ByteSize(32 << 20),
            functions: 50_000,
            function_size: ByteSize(2 << 20),
            instances: 256,
            memories: 16,
            tables: 64,
        }
    }
}

/// How much one call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Units of work, about one per instruction; nothing means only the time.
    pub fuel: Option<u64>,
    /// From the start of the call to its end, waiting included.
    pub time: Duration,
    /// All its linear memories together.
    pub memory: ByteSize,
    /// Elements of all its tables together.
    pub table_elements: usize,
    /// Standard output and standard error together.
    pub output: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: Some(1_000_000_000),
            time: Duration::from_secs(10),
            memory: ByteSize(64 << 20),
            table_elements: 100_000,
            output: ByteSize(1 << 20),
        }
    }
}
