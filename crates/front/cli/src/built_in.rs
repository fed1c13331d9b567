//! The tools that come with the product, as plugins of it.
//!
//! The agent's crate has their manifests, the plugins' crate reads them as it
//! reads every other; here the two meet. What they declare is the most that a
//! session's tools can be permitted.

use fluffy_plugin_core::Manifest;
use fluffy_policy::diagnostic::RefusedText;
use fluffy_tools::built_in::MANIFESTS;

/// Every manifest that comes with the product.
pub(crate) fn manifests() -> Result<Vec<Manifest>, RefusedText> {
    let manifests = MANIFESTS.iter();
    manifests
        .map(|(_, text)| Manifest::parse_built_in(text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_manifest_of_the_form_of_all_plugins() {
        let manifests = manifests().unwrap();
        let declared = fluffy_tools::built_in::declared();
        let mut count = 0;
        for (manifest, (family, text)) in manifests.iter().zip(MANIFESTS) {
            assert_eq!(manifest.name, *family);
            assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
            for tool in &manifest.tools {
                // The registry read the same line.
                let name = format!("{family}.{}", tool.name);
                let read = &declared[&name];
                assert_eq!(read.summary, tool.summary);
                let effect = serde_json::json!(read.effect);
                assert_eq!(effect, tool.effect.as_str(), "{name}");
                assert_eq!(read.capabilities, manifest.capabilities);
                count += 1;
            }
            // Nobody installs one, and none can say how it is started.
            assert!(Manifest::parse(text).is_err());
            let started = format!("{text}execution: {{ tier: wasm, module: x }}\n");
            assert!(Manifest::parse_built_in(&started).is_err());
        }
        assert_eq!(count, declared.len());
    }
}
