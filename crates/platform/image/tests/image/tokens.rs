//! Who we are is said to the registry and its realm, and to nobody else.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_image::{Credential, FetchError, ImageReference, Proof, Registry, ResolveError};

use crate::sample::Image;
use crate::site::{Asked, Reply, Site, honest, options};

const TOKEN: &str = "Bearer token-for-reading";

fn basic() -> String {
    format!("Basic {}", STANDARD.encode("me:marked-password"))
}

fn credential(realm: Option<String>) -> Credential {
    Credential {
        proof: Proof::Password {
            user: "me".to_owned(),
            password: "marked-password".to_owned().into(),
        },
        realm,
    }
}

fn reference(host: &str) -> ImageReference {
    format!("{host}/app:v1").parse().unwrap()
}

/// A registry that wants a token of `realm`; blobs are at `cdn`.
async fn registry(realm: String, cdn: Option<String>) -> Site {
    let honest = honest(&Image::new(&["amd64"]));
    Site::secure(move |asked| {
        let shown = asked.headers.get("authorization").map(String::as_str);
        match (&cdn, asked.path.contains("/blobs/")) {
            _ if shown != Some(TOKEN) => {
                let challenge = format!(
                    r#"Bearer realm="{realm}",service="the registry",scope="registry:catalog:*""#
                );
                Reply::new(401, "application/json", "{}").with("www-authenticate", challenge)
            }
            (Some(cdn), true) => Reply::to(format!("https://{cdn}{}", asked.path)),
            _ => honest(asked),
        }
    })
    .await
}

fn realm(_: &Asked) -> Reply {
    let token = TOKEN.strip_prefix("Bearer ").unwrap();
    Reply::new(200, "application/json", format!(r#"{{"token":"{token}"}}"#))
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_for_reading_alone() {
    let auth = Site::secure(realm).await;
    let site = registry(format!("https://{}/token?a=b", auth.at("auth.test")), None).await;
    let host = site.at("registry.test");
    let client = Registry::new(options(&[host.clone(), auth.at("auth.test")]));
    client.resolve(&reference(&host), None).await.unwrap();
    let asked = auth.asked();
    let [asked] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    let expected = "/token?a=b&service=the%20registry&scope=repository%3Aapp%3Apull";
    assert_eq!(asked.path, expected);
    assert!(!asked.headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_password_goes_to_the_realm_that_it_is_for_and_to_no_other() {
    let auth = Arc::new(Site::secure(realm).await);
    for (name, own, learns) in [
        ("evil.test", None, false),
        ("evil.test", Some("auth.test"), false),
        // The controls: the registry's own host, and one that was named.
        ("registry.test", None, true),
        ("auth.test", Some("auth.test"), true),
    ] {
        let site = registry(format!("https://{}/token", auth.at(name)), None).await;
        let host = site.at("registry.test");
        let client = Registry::new(options(&[host.clone(), auth.at(name)]));
        let credential = credential(own.map(|own| auth.at(own)));
        client
            .resolve(&reference(&host), Some(&credential))
            .await
            .unwrap();
        let asked = auth.asked();
        let shown = asked.last().unwrap().headers.get("authorization");
        assert_eq!(shown.is_some(), learns, "{name}");
        assert!(shown.is_none_or(|shown| *shown == basic()));
        // To the registry goes what the realm gave, never the password.
        let shown = site.asked().into_iter();
        let shown = shown.filter_map(|asked| asked.headers.get("authorization").cloned());
        assert!(shown.into_iter().all(|shown| shown == TOKEN));
    }
}

#[tokio::test]
async fn no_realm_is_asked_without_tls_or_at_a_private_address() {
    let auth = Site::plain(realm).await;
    let secure = Site::secure(realm).await;
    for (realm, listed) in [
        (
            format!("http://{}/token", auth.at("auth.test")),
            auth.at("auth.test"),
        ),
        (
            format!("http://{}/token", auth.at("registry.test")),
            auth.at("registry.test"),
        ),
        (
            format!("https://{}/token", secure.at("auth.test")),
            String::new(),
        ),
        ("https://user:pass@auth.test/".to_owned(), String::new()),
        ("gopher://auth.test/".to_owned(), String::new()),
    ] {
        let site = registry(realm.clone(), None).await;
        let host = site.at("registry.test");
        let client = Registry::new(options(&[host.clone(), listed]));
        let refused = client
            .resolve(&reference(&host), Some(&credential(None)))
            .await;
        assert!(refused.is_err(), "{realm}");
    }
    assert!(auth.asked().is_empty() && secure.asked().is_empty());
}

#[tokio::test]
async fn where_a_blob_is_kept_nobody_learns_who_we_are() {
    let auth = Site::secure(realm).await;
    let cdn = Site::secure(honest(&Image::new(&["amd64"]))).await;
    let at = format!("https://{}/token", auth.at("auth.test"));
    let site = registry(at, Some(cdn.at("cdn.test"))).await;
    let host = site.at("registry.test");
    let listed = [host.clone(), auth.at("auth.test"), cdn.at("cdn.test")];
    let client = Registry::new(options(&listed));
    client.resolve(&reference(&host), None).await.unwrap();
    let asked = cdn.asked();
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].headers.contains_key("authorization"));
    // The control: the registry did see the token with the same request.
    let before = site.asked();
    let before = before.iter().find(|it| it.path == asked[0].path).unwrap();
    assert_eq!(before.headers.get("authorization").unwrap(), TOKEN);
}

#[tokio::test]
async fn a_password_is_sent_to_its_registry_when_that_asks() {
    let honest = honest(&Image::new(&["amd64"]));
    let site = Site::secure(move |asked| match asked.headers.get("authorization") {
        Some(shown) if *shown == basic() => honest(asked),
        _ => Reply::new(401, "text/plain", "").with("www-authenticate", r#"Basic realm="x""#),
    })
    .await;
    let host = site.at("registry.test");
    let client = Registry::new(options(std::slice::from_ref(&host)));
    let credential = credential(None);
    client
        .resolve(&reference(&host), Some(&credential))
        .await
        .unwrap();
    assert!(!site.asked()[0].headers.contains_key("authorization"));
    assert!(!format!("{credential:?}").contains("marked-password"));
    let refused = client.resolve(&reference(&host), None).await.unwrap_err();
    assert!(matches!(
        refused,
        ResolveError::Fetch(FetchError::Denied { status: 401, .. })
    ));
    // A wrong one is not tried over and over.
    let before = site.asked().len();
    let wrong = Credential {
        proof: Proof::Password {
            user: "me".to_owned(),
            password: "wrong".to_owned().into(),
        },
        realm: None,
    };
    assert!(
        client
            .resolve(&reference(&host), Some(&wrong))
            .await
            .is_err()
    );
    assert_eq!(site.asked().len(), before + 2);
}

#[tokio::test]
async fn an_identity_token_is_sent_in_a_form_to_its_realm_and_to_no_other() {
    let identity = || Proof::Identity("marked-token/+".to_owned().into());
    let auth = Site::secure(realm).await;
    for (name, own, learns) in [
        ("evil.test", None, false),
        // The control: the one that was named.
        ("auth.test", Some("auth.test"), true),
    ] {
        let site = registry(format!("https://{}/token", auth.at(name)), None).await;
        let host = site.at("registry.test");
        let client = Registry::new(options(&[host.clone(), auth.at(name)]));
        let credential = Credential {
            proof: identity(),
            realm: own.map(|own| auth.at(own)),
        };
        let asked = reference(&host);
        client.resolve(&asked, Some(&credential)).await.unwrap();
        let asked = auth.asked().pop().unwrap();
        let form = "grant_type=refresh_token&client_id=fluffy&service=the%20registry\
                    &scope=repository%3Aapp%3Apull&refresh_token=marked-token%2F%2B";
        assert_eq!(asked.body, if learns { form } else { "" }, "{name}");
        assert_eq!(asked.path == "/token", learns, "{}", asked.path);
        assert!(!asked.headers.contains_key("authorization"));
        for asked in site.asked() {
            let all = format!("{asked:?}");
            assert!(!all.contains("marked-token"), "{all}");
        }
    }
    // Who wants a password is not given it instead.
    let site = Site::secure(|_| {
        Reply::new(401, "text/plain", "").with("www-authenticate", r#"Basic realm="x""#)
    })
    .await;
    let host = site.at("registry.test");
    let client = Registry::new(options(std::slice::from_ref(&host)));
    let credential = Credential {
        proof: identity(),
        realm: None,
    };
    let refused = client.resolve(&reference(&host), Some(&credential)).await;
    assert_eq!(refused.unwrap_err().code(), "image_auth_failed");
    assert_eq!(site.asked().len(), 1);
}

#[tokio::test]
async fn a_realm_that_may_not_learn_the_password_is_named_to_who_can_allow_it() {
    let auth = Site::secure(|_| Reply::new(401, "application/json", "{}")).await;
    let site = registry(format!("https://{}/token", auth.at("auth.test")), None).await;
    let host = site.at("registry.test");
    let client = Registry::new(options(&[host.clone(), auth.at("auth.test")]));
    let asked = reference(&host);
    let refused = client.resolve(&asked, Some(&credential(None))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), "image_auth_failed");
    assert!(
        refused.to_string().contains(&auth.at("auth.test")),
        "{refused}"
    );
    assert!(refused.fix().contains("\"realm\""), "{}", refused.fix());
    assert!(!auth.asked()[0].headers.contains_key("authorization"));
    // The control: one that may says no by itself.
    let credential = credential(Some(auth.at("auth.test")));
    let refused = client.resolve(&asked, Some(&credential)).await.unwrap_err();
    assert!(
        refused.fix().contains("--registry-auth"),
        "{}",
        refused.fix()
    );
    assert!(auth.asked()[1].headers.contains_key("authorization"));
}
