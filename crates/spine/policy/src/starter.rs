//! The policies that come with the product.
//!
//! The starter is what `fluffy init` writes and what holds while a project has
//! no reviewed policy of its own. Texts only: they are read like any other
//! file, so they can do nothing that a person's file could not.

/// Lets an agent work and nothing else; commented, to be read and changed.
pub const STARTER: &str = include_str!("starter.yaml");

/// The platform's one allow rule, `role-permits`.
pub const PLATFORM: &str = include_str!("platform.yaml");

#[cfg(test)]
mod tests {
    use crate::document::PolicyFile;
    use crate::rule::Origin;

    use super::*;

    #[test]
    fn the_shipped_policies_are_clean() {
        for text in [STARTER, PLATFORM] {
            let file = PolicyFile::parse(text, Origin::Shipped).unwrap();
            assert_eq!(file.warnings(), []);
        }
    }
}
