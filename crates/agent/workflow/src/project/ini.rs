//! The sections of `setup.cfg` that configure tests.
//!
//! Reads lines and gives every one to one of two parts; what it does not know
//! is source.

/// The lines of test sections, and all others.
pub(super) fn split(text: &str) -> (String, String) {
    let (mut configuration, mut source) = (String::new(), String::new());
    let mut in_tests = false;
    for line in text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
    {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            in_tests = ["tool:pytest", "pytest", "coverage", "tox", "testenv"]
                .iter()
                .any(|word| name.starts_with(word));
        }
        let part = match in_tests {
            true => &mut configuration,
            false => &mut source,
        };
        part.push_str(line);
        part.push('\n');
    }
    (configuration, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_sections_are_configuration() {
        let (configuration, source) =
            split("[metadata]\nname = x\n\n[tool:pytest]\naddopts = -q\n");
        assert_eq!(configuration, "[tool:pytest]\naddopts = -q\n");
        assert_eq!(source, "[metadata]\nname = x\n");
    }
}
