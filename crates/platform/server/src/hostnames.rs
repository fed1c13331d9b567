//! Proves that a hostname is whose route names it.
//!
//! By a text in the DNS that only its owner could have put there, or because
//! it is below the installation's own suffix. Decides nothing: what was found
//! goes along with a request, or is said by the loop `routes-verify`.

use fluffy_control::runtime::Unproven;

use crate::dns::{Dns, LookUpError};

/// How a hostname was proven, as the ledger has it.
const BY_TEXT: &str = "dns_txt";
const BY_SUFFIX: &str = "suffix";

/// Proves hostnames; to be cloned freely.
#[derive(Debug, Clone, Default)]
pub struct Hostnames {
    /// Who is asked.
    pub dns: Dns,
    /// Names below this are the installation's own to give.
    pub suffix: Option<String>,
}

impl Hostnames {
    /// How a name is proven without asking anybody, if it is.
    #[must_use]
    pub fn given(&self, hostname: &str) -> Option<&'static str> {
        let suffix = self.suffix.as_deref()?.trim_matches('.');
        let (label, rest) = hostname.split_at_checked(hostname.len().checked_sub(suffix.len())?)?;
        let own = label.len() > 1 && label.ends_with('.') && rest.eq_ignore_ascii_case(suffix);
        (own && !suffix.is_empty()).then_some(BY_SUFFIX)
    }

    /// How a name is proven, if it is.
    ///
    /// # Errors
    /// The DNS can't be asked.
    pub async fn prove(&self, wanted: &Unproven) -> Result<Option<&'static str>, LookUpError> {
        if let Some(method) = self.given(&wanted.hostname) {
            return Ok(Some(method));
        }
        let texts = self.dns.texts(&wanted.challenge.record).await?;
        let found = texts
            .iter()
            .any(|text| text.trim() == wanted.challenge.value);
        Ok(found.then_some(BY_TEXT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_suffix_are_the_installations_own() {
        let hostnames = Hostnames {
            suffix: Some(".apps.example.com".to_owned()),
            ..Hostnames::default()
        };
        for own in ["shop.apps.example.com", "a.b.apps.Example.com"] {
            assert_eq!(hostnames.given(own), Some(BY_SUFFIX), "{own}");
        }
        for other in [
            "apps.example.com",
            ".apps.example.com",
            "evilapps.example.com",
            "shop.apps.example.com.evil.org",
            "com",
            "é.example.com",
        ] {
            assert_eq!(hostnames.given(other), None, "{other}");
        }
        assert_eq!(Hostnames::default().given("a.b"), None);
    }
}
