//! What a registry wants to see before it answers, and the token for it.
//!
//! Reads only. Whether the realm may be asked, and who we say we are, is
//! decided by `session`.

use fluffy_secret::SecretString;
use hyper::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;
use zeroize::Zeroizing;

/// What a registry wants to see.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Name and password.
    Basic,
    /// A token that the realm gives out.
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

impl Challenge {
    /// The first that is understood, tokens before passwords.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).into_iter();
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        let of_scheme = |wanted: &str| {
            values.iter().find_map(|value| {
                let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
                scheme.eq_ignore_ascii_case(wanted).then_some(rest)
            })
        };
        if let Some(rest) = of_scheme("bearer") {
            return Some(Self::Bearer {
                realm: parameter(rest, "realm")?,
                service: parameter(rest, "service"),
            });
        }
        of_scheme("basic").map(|_| Self::Basic)
    }
}

/// Where the realm is asked for a token to read one repository.
pub(super) fn token_path(path: &str, service: Option<&str>, repository: &str) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    let service = match service {
        Some(service) => format!("service={}&", encode(service)),
        None => String::new(),
    };
    let scope = encode(&format!("repository:{repository}:pull"));
    format!("{path}{mark}{service}scope={scope}")
}

/// What a realm is sent for a token to read one repository, by who has another
/// token instead of a password.
pub(super) fn token_form(
    token: &SecretString,
    service: Option<&str>,
    repository: &str,
) -> Zeroizing<String> {
    let scope = encode(&format!("repository:{repository}:pull"));
    let service = encode(service.unwrap_or_default());
    let token = Zeroizing::new(encode(token.expose()));
    Zeroizing::new(format!(
        "grant_type=refresh_token&client_id=fluffy&service={service}&scope={scope}\
         &refresh_token={}",
        *token
    ))
}

/// The header made of a realm's answer.
pub(super) fn bearer(answer: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        token: Option<String>,
        #[serde(default)]
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let token = Zeroizing::new(answer.token.or(answer.access_token)?);
    let header = Zeroizing::new(format!("Bearer {}", token.as_str()));
    let mut header = HeaderValue::from_str(&header).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// A parameter of a challenge: `name="value"`, separated by commas.
fn parameter(mut rest: &str, wanted: &str) -> Option<String> {
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        let (name, after) = rest.split_once('=')?;
        let value;
        (value, rest) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find([',', ' ']).unwrap_or(after.len());
                let (value, rest) = after.split_at(end);
                (value.to_owned(), rest)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
    }
}

/// A text up to its closing mark, and what follows.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((place, character)) = characters.next() {
        match character {
            '"' => return Some((value, quoted.get(place + 1..)?)),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap());
        }
        Challenge::of(&headers)
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
            })
        };
        for (value, expected) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                bearer("https://auth.docker.io/token", Some("registry.docker.io")),
            ),
            (
                r#"bearer scope="a,realm=\"x\"", realm=https://a.test/t"#,
                bearer("https://a.test/t", None),
            ),
            (r#"Basic realm="Registry""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            ("Bearer", None),
            (r#"Bearer realm="never closed"#, None),
            (r#"Digest realm="x""#, None),
            ("", None),
        ] {
            assert_eq!(read(&[value]), expected, "{value}");
        }
        let both = [r#"Basic realm="x""#, r#"Bearer realm="https://a.test""#];
        assert_eq!(read(&both), bearer("https://a.test", None));
    }

    #[test]
    fn a_token_is_asked_for_reading_one_repository() {
        let path = token_path("/token", Some("a b&scope=x"), "library/nginx");
        let scope = "scope=repository%3Alibrary%2Fnginx%3Apull";
        assert_eq!(path, format!("/token?service=a%20b%26scope%3Dx&{scope}"));
        assert_eq!(
            token_path("/t?a=b", None, "library/nginx"),
            format!("/t?a=b&{scope}")
        );
    }

    #[test]
    fn a_token_is_one_line_and_never_shown() {
        let token = bearer(br#"{"token": "abc", "expires_in": 300}"#).unwrap();
        assert_eq!(token, "Bearer abc");
        assert!(token.is_sensitive());
        assert!(bearer(br#"{"access_token": "abc"}"#).is_some());
        assert_eq!(bearer(br#"{"token": "a\r\nx: y"}"#), None);
        assert_eq!(bearer(b"{}"), None);
    }
}
