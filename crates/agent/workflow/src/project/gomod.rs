//! The directives of `go.mod` that put one module in another's place.
//!
//! With them a fake could stand where tests expect a library, so they count as
//! configuration; everything else is source.

/// Lines of `replace`, `exclude` and `toolchain`, and all others.
pub(super) fn split(text: &str) -> (String, String) {
    let (mut configuration, mut source) = (String::new(), String::new());
    let mut in_block = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let directive = line.split([' ', '\t', '(']).next().unwrap_or_default();
        let replaces = in_block || matches!(directive, "replace" | "exclude" | "toolchain");
        in_block = match in_block {
            true => line != ")",
            false => replaces && line.ends_with('('),
        };
        let part = match replaces {
            true => &mut configuration,
            false => &mut source,
        };
        part.push_str(line);
        part.push('\n');
    }
    (configuration, source)
}
