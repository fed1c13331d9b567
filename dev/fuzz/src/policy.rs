//! Targets for `fluffy-policy`: policies, capabilities, paths, hosts, tokens.
//!
//! What people and models write here decides what is allowed, so one thing
//! must never have two spellings that compare as different.

use fluffy_policy::capability::{Capability, Pattern};
use fluffy_policy::document::PolicyFile;
use fluffy_policy::host::{self, HostPattern};
use fluffy_policy::path;
use fluffy_policy::rule::Origin;
use fluffy_policy::table::TestTable;
use fluffy_policy::token::Token;

use crate::as_text;

/// `*` covers every capability, and a capability covers itself.
///
/// The input is a pattern and a capability with a new line between.
pub(crate) fn capability(bytes: &[u8]) {
    let Some((pattern, capability)) = as_text(bytes).and_then(|text| text.split_once('\n')) else {
        return;
    };
    let pattern = Pattern::parse(pattern);
    let Ok(capability) = Capability::parse(capability) else {
        return;
    };
    if let Ok(pattern) = pattern {
        let _ = pattern.matches(&capability);
    }
    let everything = Pattern::parse("*");
    assert!(everything.is_ok_and(|pattern| pattern.matches(&capability)));
    let itself = Pattern::parse(capability.as_str());
    assert!(itself.is_ok_and(|pattern| pattern.matches(&capability)));
}

/// A test table reads or is refused at a place; it never panics.
pub(crate) fn test_table(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    if let Err(refused) = TestTable::parse(text) {
        assert!(refused.errors().next().is_some());
    }
}

/// A normal path is its own normal form, and never leads upwards.
pub(crate) fn path(bytes: &[u8]) {
    let Some(normal) = as_text(bytes).and_then(|text| path::normalise(text).ok()) else {
        return;
    };
    assert_eq!(path::normalise(&normal).ok().as_deref(), Some(&*normal));
    assert!(normal.split('/').all(|name| name != ".."));
}

/// A normal host is its own normal form; a pattern prints and reads back.
pub(crate) fn address(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    if let Some(normal) = host::normalise(text) {
        assert_eq!(host::normalise(&normal).as_ref(), Some(&normal));
    }
    if let Ok(pattern) = HostPattern::parse(text) {
        let printed = pattern.to_string();
        let again = HostPattern::parse(&printed).map(|pattern| pattern.to_string());
        assert_eq!(again.ok(), Some(printed));
    }
}

/// A policy is read whole, or refused with a place inside the text.
pub(crate) fn policy_yaml(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    for origin in [Origin::Organisation, Origin::User, Origin::Project] {
        let Err(refused) = PolicyFile::parse(text, origin) else {
            continue;
        };
        assert!(refused.errors().next().is_some());
        for finding in &refused.findings {
            let place = finding.place;
            let end = place.offset.saturating_add(place.length);
            assert!(text.get(place.offset..end).is_some(), "{finding:?}");
        }
    }
}

/// A token that reads has exactly one spelling.
pub(crate) fn token(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.reveal(), text);
    }
}
