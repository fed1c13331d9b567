//! Both sides of redaction: no secret survives, ordinary text does.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

/// Compiling the shapes is the slow part of an unoptimised test.
fn redactor() -> Redactor {
    static COMPILED: LazyLock<Redactor> = LazyLock::new(|| Redactor::new(&[]).unwrap());
    Redactor {
        patterns: COMPILED.patterns.clone(),
        secrets: Vec::new(),
    }
}

fn knowing(values: &[&str]) -> Redactor {
    let mut redactor = redactor();
    for value in values {
        redactor
            .register(SecretString::from((*value).to_owned()))
            .unwrap();
    }
    redactor
}

/// Made of pieces, so that no scanner takes this file for a leak.
fn samples() -> Vec<String> {
    let long = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fR3hU6";
    let pem = |kind: &str| {
        format!(
            "-----BEGIN {kind}PRIVATE KEY-----\nMIIEpAIBAAKCAQEA75\n{long}==\n-----END {kind}PRIVATE KEY-----"
        )
    };
    vec![
        format!("sk-{long}"),
        format!("sk-ant-api03-{long}-{long}"),
        format!("sk-proj-{long}"),
        format!("sk-{}", "0123456789abcdef".repeat(2)),
        format!("ghp_{long}"),
        format!("gho_{long}"),
        format!("github_pat_{}_{long}", &long[..22]),
        format!("AKIA{}", "Q7".repeat(8)),
        format!("xoxb-{}-{}", "1234567890", &long[..24]),
        format!("xoxp-{}", "12345-67890-abc"),
        format!("glpat-{}", &long[..20]),
        format!("npm_{long}"),
        format!("flf_pat_{long}"),
        format!("flf_at_{}", &long[..16]),
        format!("AIza{}", &long[..35]),
        format!("eyJ{}.eyJ{}.{}", &long[..17], &long[..30], &long[..20]),
        pem(""),
        pem("RSA "),
        pem("ENCRYPTED "),
        pem("EC ").replace('\n', "\\n"),
        pem("OPENSSH ").replace("-----END OPENSSH PRIVATE KEY-----", ""),
    ]
}

#[test]
fn every_known_shape_is_taken_out_whole() {
    for sample in samples() {
        for text in [
            sample.clone(),
            format!("key = \"{sample}\", next"),
            format!("error ({sample}) in line 3"),
            format!("KEY={sample}\nOTHER=1"),
        ] {
            let redacted = redactor().redact(&text);
            assert_eq!(redacted.count, 1, "{text} -> {}", redacted.text);
            let rest = text.replacen(&sample, MARK, 1);
            let same = |text: &str| text.replace(char::is_whitespace, "");
            // A key cut off in the middle takes the words after it along.
            let cut_off = sample.contains("BEGIN OPENSSH");
            assert!(
                cut_off || same(&redacted.text) == same(&rest),
                "{}",
                redacted.text
            );
            assert!(!redacted.text.contains("aB3dE6g"), "{}", redacted.text);
        }
    }
}

#[test]
fn headers_and_urls_lose_only_their_secret() {
    for (text, shown) in [
        (
            "Authorization: Bearer abcdefgh12345678",
            "Authorization: Bearer ⟦redacted⟧",
        ),
        (
            "-H 'authorization: Basic dXNlcjpwYXNz' -v",
            "-H 'authorization: Basic ⟦redacted⟧' -v",
        ),
        (
            r#"{"Authorization": "token 0123456789abcdef"}"#,
            r#"{"Authorization": "token ⟦redacted⟧"}"#,
        ),
        (
            "Proxy-Authorization=a1b2c3d4e5f6a7b8c9d0",
            "Proxy-Authorization=⟦redacted⟧",
        ),
        (
            "sent bearer a1b2c3d4e5f6a7b8c9d0e1 to it",
            "sent bearer ⟦redacted⟧ to it",
        ),
        (
            "postgres://app:hunter22@db:5432/x",
            "postgres://app:⟦redacted⟧@db:5432/x",
        ),
    ] {
        assert_eq!(redactor().redact(text).text, shown);
    }
}

#[test]
fn ordinary_text_is_left_alone() {
    let texts = [
        include_str!("../secret.rs"),
        include_str!("../redactor.rs"),
        "The task-management and disk-encryption-configuration pages are risk-free.",
        ".sk-loading-spinner-container-large { color: red } .sk-grid-12-of-24-columns {}",
        "npm_config_registry=https://registry.example.com npm_lifecycle_event=test",
        "if line.starts_with(\"-----BEGIN PRIVATE KEY-----\") { return Err(e) }",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "authorization = check_permission(user)  # authorization: required",
        "Authorization: Basic authentication is required; authorization: Token expected",
        "let authorization: AuthorizationDecisionForPrincipal = gate.check()?;",
        "Authorization: Bearer $TOKEN, Authorization: Bearer {token}, bearer of bad news",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b sha256:e3b0c44298fc1c149afbf4c8996fb924",
        "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV req_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "https://example.com:8443/path?q=a:b@c ssh://git@github.com/x http://[::1]:80/",
        "eyJust a word. AKIA is a prefix, ghp_ too, xoxb- as well, and sk- of course.",
        "git@github.com:org/repo.git user@example.com",
        "größe 漢字 👩‍👧 ⟦brackets⟧ ⟦redacted⟧",
    ];
    for text in texts {
        let redacted = redactor().redact(text);
        assert_eq!((redacted.count, redacted.text.as_str()), (0, text));
    }
}

#[test]
fn overlapping_and_nested_values_leave_nothing() {
    let redactor = knowing(&["abcdef", "defghi", "cdefg1"]);
    assert_eq!(redactor.redact("abcdefghi").text, MARK);
    assert_eq!(redactor.redact("xabcdefx").text, "x⟦redacted⟧x");
    assert_eq!(redactor.redact("abcdefabcdef").count, 1);
    assert_eq!(redactor.redact("abcdef abcdef").count, 2);
}

#[test]
fn a_shape_uncovered_by_a_redaction_is_found_too() {
    let key = format!("sk-{}", "a1b2c3d4e5f6".repeat(3));
    let text = format!("a hunter2{key} b");
    assert_eq!(redactor().redact(&text).count, 0, "no boundary before it");
    assert_eq!(knowing(&["hunter2"]).redact(&text).text, "a ⟦redacted⟧ b");
}

#[test]
fn a_policy_adds_its_own_patterns() {
    let redactor = Redactor::new(&[r"ACME-\d{4}".to_owned(), r"pin=(?<secret>\d+)".to_owned()]);
    let redacted = redactor.unwrap().redact("ACME-1234 and pin=77");
    assert_eq!(redacted.text, "⟦redacted⟧ and pin=⟦redacted⟧");
    let wrong = |pattern: &str| Redactor::new(&[pattern.to_owned()]).unwrap_err();
    assert!(matches!(wrong("("), RedactError::Pattern { .. }));
    assert!(matches!(
        wrong("a*"),
        RedactError::PatternMatchesNothing { .. }
    ));
    assert!(matches!(
        wrong(r"(\w{100}){100}"),
        RedactError::Pattern { .. }
    ));
    assert!(matches!(
        wrong(&"a".repeat(1025)),
        RedactError::PatternTooLong { number: 1 }
    ));
    let many = vec!["abc".to_owned(); MAX_PATTERNS + 1];
    assert!(matches!(
        Redactor::new(&many),
        Err(RedactError::TooManyPatterns)
    ));
}

#[test]
fn patterns_that_match_the_mark_end_all_the_same() {
    for pattern in [".+", "redacted", "⟧", "(?s).", "⟦.", "d⟧x*"] {
        let redactor = Redactor::new(&[pattern.to_owned()]).unwrap();
        let once = redactor.redact("one ⟦redacted⟧xx two\nthree");
        assert_eq!(redactor.redact(&once.text).text, once.text, "{pattern}");
    }
}

#[test]
fn values_that_cannot_be_redacted_are_refused() {
    let mut redactor = redactor();
    let mut register = |value: &str| redactor.register(SecretString::from(value.to_owned()));
    assert!(matches!(register("short"), Err(RedactError::TooShort)));
    assert!(matches!(
        register("redacted"),
        Err(RedactError::LikeTheMark)
    ));
    assert!(matches!(register("abc⟦def"), Err(RedactError::LikeTheMark)));
    for number in 0..MAX_SECRETS {
        register(&format!("secret-{number}")).unwrap();
    }
    assert!(matches!(
        register("one-too-many"),
        Err(RedactError::TooManySecrets)
    ));
}

#[test]
fn a_summary_is_cut_after_redaction() {
    let redactor = knowing(&["hunter2hunter2"]);
    let text = format!("{}hunter2hunter2{}", "x".repeat(490), "y".repeat(100));
    let summary = redactor.summary(&text, 500);
    assert_eq!(summary.text.chars().count(), 500);
    assert!(!summary.text.contains("hunter"), "{}", summary.text);
    assert_eq!(redactor.summary("short", 500).text, "short");
    assert_eq!(redactor.summary("short", 5).text, "short");
    assert_eq!(redactor.summary("short", 4).text, "sho…");
    assert_eq!(redactor.summary("short", 0).text, "");
}

#[test]
fn debug_shows_no_secret() {
    assert!(!format!("{:?}", knowing(&["hunter2"])).contains("hunter2"));
}

proptest! {
    #[test]
    fn no_registered_secret_survives(
        secrets in prop::collection::vec("[ab\\-é]{6,9}|[a-zA-Z0-9]{8,20}", 1..5),
        pieces in prop::collection::vec("[ab\\-é ]{0,6}|\\PC{0,8}|⟦redacted⟧", 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let values: Vec<&str> = secrets.iter().map(String::as_str)
            .filter(|value| value.len() >= MIN_SECRET && !MARK.contains(*value)).collect();
        prop_assume!(!values.is_empty());
        let redactor = knowing(&values);
        let mut text = String::new();
        for (piece, index) in pieces.iter().zip(order.iter().map(Some).chain(std::iter::repeat(None))) {
            text.push_str(piece);
            if let Some(index) = index {
                text.push_str(values[index.index(values.len())]);
            }
        }
        let once = redactor.redact(&text);
        for value in &values {
            prop_assert!(!once.text.contains(value), "{:?} in {:?}", value, once.text);
        }
        let twice = redactor.redact(&once.text);
        prop_assert_eq!(twice.count, 0);
        prop_assert_eq!(twice.text, once.text);
    }

    #[test]
    fn any_text_with_a_shape_in_it_is_redacted_once_and_for_all(
        before in "\\PC{0,12}( |\"|=)", after in "( |\"|;|\n)\\PC{0,12}",
        sample in prop::sample::select(samples()),
    ) {
        let redactor = redactor();
        let once = redactor.redact(&format!("{before}{sample}{after}"));
        prop_assert!(once.count >= 1);
        prop_assert!(!once.text.contains(&sample));
        prop_assert_eq!(redactor.redact(&once.text).text, once.text);
    }
}
