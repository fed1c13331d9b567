//! Registries that lie, stall, flood and point elsewhere. In each test the
//! honest twin of the attack works, so the attack alone is what is refused.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_image::{
    FetchError, ImageReference, Options, Registry, ResolveError, Resolved, SurveyError,
};

use crate::sample::{INDEX, Image};
use crate::site::{Asked, Body, Names, Reply, Site, honest, options};

/// What becomes of one image at a plain registry that answers by `handler`.
async fn resolve(
    handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    version: &str,
) -> Result<Resolved, ResolveError> {
    let site = Site::plain(handler).await;
    let host = site.at("127.0.0.1");
    let registry = Registry::new(options(std::slice::from_ref(&host)));
    registry.resolve(&reference(&host, version), None).await
}

fn reference(host: &str, version: &str) -> ImageReference {
    format!("{host}/app{version}").parse().unwrap()
}

/// An honest registry but for what `change` makes of some answers.
fn but(
    image: &Image,
    change: impl Fn(&Asked, Reply) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    let honest = honest(image);
    move |asked| change(asked, honest(asked))
}

#[tokio::test]
async fn an_honest_registry_is_believed() {
    let image = Image::new(&["arm64", "amd64", "s390x"]);
    let resolved = resolve(honest(&image), ":v1").await.unwrap();
    assert_eq!(resolved.digest, image.digest());
    let found: Vec<_> = resolved
        .platforms
        .iter()
        .map(|it| (it.arch.as_str(), it.digest))
        .collect();
    let expected = [("amd64", image.manifests[1]), ("arm64", image.manifests[0])];
    assert_eq!(found, expected);
    let by_digest = format!("@sha256:{}", image.digest());
    assert_eq!(resolve(honest(&image), &by_digest).await.unwrap(), resolved);
    match resolve(honest(&image), ":v2").await {
        Err(error @ ResolveError::Fetch(FetchError::NotFound { .. })) => {
            assert_eq!(error.code(), "image_unresolvable");
            let said = error.to_string();
            assert!(said.ends_with("has no `app:v2`"), "{said}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn content_that_is_not_its_digest_is_refused() {
    let image = Image::new(&["amd64"]);
    let other = Image::new(&["arm64"]);
    let by_digest = format!("@sha256:{}", image.digest());
    let named = |asked: &Asked, digest: &Digest| asked.path.ends_with(&digest.to_string());
    // The index: by its digest, and by what is announced with a tag.
    let swapped = other.root.clone();
    let root = but(&image, move |asked, reply| {
        match asked.path.contains("manifests/") {
            true => Reply::new(200, INDEX, swapped.clone()),
            false => reply,
        }
    });
    let refused = resolve(root, &by_digest).await;
    assert!(matches!(
        refused,
        Err(ResolveError::Fetch(FetchError::Content {
            what: "digest",
            ..
        }))
    ));
    let swapped = other.root.clone();
    let digest = format!("sha256:{}", image.digest());
    let root = but(&image, move |_, _| {
        Reply::new(200, INDEX, swapped.clone()).with("docker-content-digest", digest.clone())
    });
    let refused = resolve(root, ":v1").await;
    assert!(matches!(
        refused,
        Err(ResolveError::Fetch(FetchError::Content {
            what: "digest",
            ..
        }))
    ));
    // A manifest and a config: one letter of each.
    for target in [image.manifests[0], image.configs[0]] {
        let changed = but(&image, move |asked, mut reply| {
            if let (true, Body::Whole(body)) = (named(asked, &target), &mut reply.body) {
                let last = body.len() - 1;
                body[last] = b' ';
            }
            reply
        });
        let refused = resolve(changed, ":v1").await;
        let Err(ResolveError::Survey(SurveyError::Content { digest, what })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((digest, what), (target, "digest"));
    }
}

#[tokio::test]
async fn a_document_comes_as_what_it_is() {
    let image = Image::new(&["amd64"]);
    for (target, media_type) in [
        ("v1".to_owned(), "text/html"),
        ("v1".to_owned(), "application/json"),
        (
            "v1".to_owned(),
            "application/vnd.docker.distribution.manifest.list.v2+json",
        ),
        (
            image.manifests[0].to_string(),
            "application/vnd.docker.distribution.manifest.v2+json",
        ),
        (
            image.manifests[0].to_string(),
            "application/vnd.docker.distribution.manifest.v1+json",
        ),
    ] {
        let changed = but(&image, move |asked, mut reply| {
            if asked.path.ends_with(&target) {
                reply.headers[0].1 = media_type.to_owned();
            }
            reply
        });
        let refused = resolve(changed, ":v1").await.unwrap_err();
        assert_eq!(refused.code(), "image_unresolvable");
        assert!(!refused.is_transient(), "{media_type}");
    }
    // The control: a parameter behind the type changes nothing.
    let changed = but(&image, |_, mut reply| {
        reply.headers[0].1.push_str("; charset=utf-8");
        reply
    });
    assert!(resolve(changed, ":v1").await.is_ok());
}

#[tokio::test]
async fn floods_and_lies_about_length_end_at_their_bound() {
    let image = Image::new(&["amd64"]);
    let config = image.configs[0].to_string();
    let manifest = image.manifests[0].to_string();
    for target in ["v1".to_owned(), manifest, config] {
        for body in [
            Body::Announced(u64::MAX >> 1, Vec::new()),
            Body::Endless(vec![b' '; 64 << 10]),
        ] {
            let (target, body) = (target.clone(), body);
            let changed = but(&image, move |asked, mut reply| {
                if asked.path.ends_with(&target) {
                    reply.body = body.clone();
                }
                reply
            });
            let refused = resolve(changed, ":v1").await.unwrap_err();
            let said = refused.to_string();
            assert!(
                said.ends_with("a document is larger than it may be"),
                "{said}"
            );
        }
    }
}

#[tokio::test]
async fn a_stalling_registry_costs_the_deadline_and_no_more() {
    let image = Image::new(&["amd64"]);
    for body in [Body::Never, Body::Pausing(b"{".to_vec())] {
        let site = Site::plain(but(&image, move |_, mut reply| {
            reply.body = body.clone();
            reply
        }))
        .await;
        let host = site.at("127.0.0.1");
        let registry = Registry::new(Options {
            deadline: Duration::from_millis(200),
            ..options(std::slice::from_ref(&host))
        });
        let refused = registry
            .resolve(&reference(&host, ":v1"), None)
            .await
            .unwrap_err();
        assert!(matches!(
            refused,
            ResolveError::Fetch(FetchError::Deadline { .. })
        ));
        assert!(refused.is_transient());
        assert!(!site.asked().is_empty());
    }
}

#[tokio::test]
async fn who_is_busy_says_when_to_come_back() {
    for (status, wait) in [(429, Some("7")), (503, None)] {
        let refused = resolve(
            move |_| match wait {
                Some(wait) => Reply::new(status, "text/plain", "secret").with("retry-after", wait),
                None => Reply::new(status, "text/plain", "secret"),
            },
            ":v1",
        );
        let refused = refused.await.unwrap_err();
        let wait = wait.map(|wait| Duration::from_secs(wait.parse().unwrap()));
        assert_eq!(refused.retry_after(), wait);
        assert!(refused.is_transient());
        // What the other side wrote is not ours to show.
        assert!(!format!("{refused:?}{refused}").contains("secret"));
    }
}

#[tokio::test]
async fn nothing_is_fetched_from_elsewhere_that_a_layer_names() {
    let trap = Site::plain(|_| Reply::new(200, "text/plain", "caught")).await;
    let elsewhere = format!("http://{}/layer", trap.at("127.0.0.1"));
    let image = Image::elsewhere(&["amd64"], Some(elsewhere));
    assert!(resolve(honest(&image), ":v1").await.is_ok());
    let site = Site::plain(honest(&image)).await;
    let host = site.at("127.0.0.1");
    let listed = [host.clone(), trap.at("127.0.0.1")];
    let registry = Registry::new(options(&listed));
    let size = image.blobs[&image.layers[0]].len() as u64;
    let reference = reference(&host, ":v1");
    let blob = registry.open_blob(&reference, (image.layers[0], size), None);
    assert!(blob.await.is_ok());
    assert!(trap.asked().is_empty());
}

#[tokio::test]
async fn only_listed_registries_have_private_addresses() {
    let image = Image::new(&["amd64"]);
    let site = Site::plain(honest(&image)).await;
    let metadata = "169.254.169.254".parse().unwrap();
    let public = "93.184.216.34".parse().unwrap();
    let names = || {
        let both = ("both.test".to_owned(), vec![public, metadata]);
        let cloud = ("cloud.test".to_owned(), vec![metadata]);
        Arc::new(Names(HashMap::from([both, cloud])))
    };
    let private = [
        site.at("127.0.0.1"),
        site.at("localhost.test"),
        "10.1.2.3/x".to_owned(),
        "cloud.test".to_owned(),
        "both.test".to_owned(),
    ];
    let registry = Registry::new(Options {
        insecure: BTreeSet::from(private.clone()),
        network: names(),
        ..options(&[])
    });
    for host in &private {
        let refused = registry
            .resolve(&reference(host, ":v1"), None)
            .await
            .unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("is not connected to: it is "), "{said}");
    }
    assert!(site.asked().is_empty());
    // The control: once it is listed, it is found.
    let listed = site.at("localhost.test");
    let registry = Registry::new(Options {
        insecure: BTreeSet::from([listed.clone()]),
        ..options(std::slice::from_ref(&listed))
    });
    assert!(
        registry
            .resolve(&reference(&listed, ":v1"), None)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn without_being_listed_a_registry_needs_tls_that_is_trusted() {
    let image = Image::new(&["amd64"]);
    let plain = Site::plain(honest(&image)).await;
    let secure = Site::secure(honest(&image)).await;
    let hosts = [
        plain.at("registry.test"),
        secure.at("registry.test"),
        secure.at("other.test"),
    ];
    let registry = Registry::new(options(&hosts));
    let [plain_host, secure_host, other_host] = &hosts;
    let refused = registry.resolve(&reference(other_host, ":v1"), None).await;
    assert!(matches!(
        refused,
        Err(ResolveError::Fetch(FetchError::Tls { .. }))
    ));
    // One that hangs up said nothing about who it is: it may say it later.
    let broken = registry.resolve(&reference(plain_host, ":v1"), None).await;
    let broken = broken.unwrap_err();
    assert!(
        matches!(broken, ResolveError::Fetch(FetchError::Connect { .. })),
        "{broken:?}"
    );
    assert!(broken.is_transient());
    assert!(plain.asked().is_empty());
    assert!(
        registry
            .resolve(&reference(secure_host, ":v1"), None)
            .await
            .is_ok()
    );
    let registry = Registry::new(Options {
        roots: tokio_rustls::rustls::RootCertStore::empty(),
        ..options(&hosts)
    });
    let refused = registry.resolve(&reference(secure_host, ":v1"), None).await;
    assert!(matches!(
        refused,
        Err(ResolveError::Fetch(FetchError::Tls { .. }))
    ));
}

#[tokio::test]
async fn a_redirect_leads_to_no_private_address_and_to_none_without_tls() {
    let image = Image::new(&["amd64"]);
    let inside = Site::plain(honest(&image)).await;
    let cdn = Site::secure(honest(&image)).await;
    let (plain, secure) = (inside.at("cdn.test"), cdn.at("cdn.test"));
    for (to, listed, works) in [
        (format!("http://{plain}"), &plain, false),
        (format!("https://{secure}"), &plain, false),
        (format!("https://{secure}"), &secure, true),
        ("file://".to_owned(), &secure, false),
    ] {
        let to_there = to.clone();
        let site = Site::secure(but(&image, move |asked, reply| {
            match asked.path.contains("/blobs/") {
                true => Reply::to(format!("{to_there}{}", asked.path)),
                false => reply,
            }
        }))
        .await;
        let host = site.at("registry.test");
        let registry = Registry::new(options(&[host.clone(), listed.clone()]));
        let found = registry.resolve(&reference(&host, ":v1"), None).await;
        assert_eq!(found.is_ok(), works, "{to}: {found:?}");
    }
    assert!(inside.asked().is_empty());
    assert_eq!(cdn.asked().len(), 1);
    // Nor does it lead round and round.
    let site = Site::secure(|asked| Reply::to(asked.path.clone())).await;
    let host = site.at("registry.test");
    let registry = Registry::new(options(std::slice::from_ref(&host)));
    let refused = registry
        .resolve(&reference(&host, ":v1"), None)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().ends_with("it redirects too often"),
        "{refused}"
    );
    assert_eq!(site.asked().len(), 6);
}

#[tokio::test]
async fn a_blob_is_whole_and_right_or_an_error() {
    let image = Image::new(&["amd64"]);
    let digest = image.layers[0];
    let content = image.blobs[&digest].clone();
    let size = content.len() as u64;
    let cases: [(Body, Result<(), &str>); 6] = [
        (Body::Whole(content.clone()), Ok(())),
        (Body::Whole(content[1..].to_vec()), Err("another size")),
        (
            Body::Whole([&content[1..], b"x"].concat()),
            Err("another digest"),
        ),
        (Body::Announced(size, content[1..].to_vec()), Err("broke")),
        (Body::Endless(vec![0; 1000]), Err("another size")),
        (Body::Pausing(content[1..].to_vec()), Err("took longer")),
    ];
    for (body, expected) in cases {
        let pauses = matches!(body, Body::Pausing(_));
        let site = Site::plain(but(&image, move |_, mut reply| {
            reply.body = body.clone();
            reply
        }))
        .await;
        let host = site.at("127.0.0.1");
        let mut options = options(std::slice::from_ref(&host));
        if pauses {
            options.idle = Duration::from_millis(200);
        }
        let registry = Registry::new(options);
        let read = async {
            let reference = reference(&host, ":v1");
            let mut blob = registry.open_blob(&reference, (digest, size), None).await?;
            let mut all = Vec::new();
            while let Some(piece) = blob.next().await? {
                all.extend_from_slice(&piece);
            }
            assert!(blob.next().await?.is_none());
            Ok::<_, FetchError>(all)
        };
        match (read.await, expected) {
            (Ok(all), Ok(())) => assert_eq!(all, content),
            (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
            (found, expected) => panic!("{found:?} and not {expected:?}"),
        }
    }
}
