//! Finds the engine's name in a configuration, without understanding it.
//!
//! A line scan on purpose: whoever validates the file is the kernel, later.
//! Never fails; what it does not find is the default.

/// The key that names the engine.
pub const KEY: &[u8] = b"sandbox.engine";

/// What the first `engine = "…"` in `[sandbox]` says, if there is one.
#[must_use]
pub fn wanted(configuration: &[u8]) -> Option<&[u8]> {
    let mut section: &[u8] = b"";
    for line in configuration.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if let Some(rest) = line.strip_prefix(b"[") {
            section = rest.split(|byte| *byte == b']').next()?.trim_ascii();
        } else if let Some(at) = line.iter().position(|byte| *byte == b'=') {
            let (key, value) = line.split_at(at);
            let key = key.trim_ascii();
            let dot: &[u8] = if section.is_empty() { b"" } else { b"." };
            if [section, dot, key].concat() == KEY {
                return quoted(value.get(1..)?.trim_ascii());
            }
        }
    }
    None
}

fn quoted(value: &[u8]) -> Option<&[u8]> {
    let (quote, rest) = value.split_first()?;
    b"\"'".contains(quote).then_some(())?;
    let end = rest.iter().position(|byte| byte == quote)?;
    rest.get(..end)
}
