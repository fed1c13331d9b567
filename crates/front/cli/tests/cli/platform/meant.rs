//! Which app is meant where manifests name one.

use serde_json::json;

use super::double::{Asked, Double, Reply};
use super::{MANIFEST, deploying, local};
use crate::site::Site;

/// The apps that were asked about.
fn apps(double: &Double) -> Vec<String> {
    let asked = double.asked().into_iter();
    let mut apps: Vec<String> = asked.filter_map(|it| it.path.get(1).cloned()).collect();
    apps.dedup();
    apps
}

#[test]
fn a_manifest_that_is_named_says_which_app_is_meant() {
    let (site, double) = local(deploying("succeeded"));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let file = "services/api/fluffy.toml";
    let manifest = MANIFEST.replace("\"shop\"", "\"api\"");
    site.context.write(file, &manifest).unwrap();
    for words in [&["deploy"][..], &["launch"], &["releases", "create"]] {
        let named = [words, &["--manifest", file]].concat();
        site.ends(0, &named);
        assert_eq!(apps(&double), ["api"], "{named:?}");
        // The control: without it the nearest one says that.
        site.ends(0, words);
        assert_eq!(apps(&double), ["shop"], "{words:?}");
    }
    site.ends(0, &["deploy", "--manifest", file, "--app", "till"]);
    assert_eq!(apps(&double), ["till"]);
}

/// A server that takes everything.
fn willing(asked: &Asked) -> Reply {
    let spec = asked.operation.spec();
    let value = json!({
        "id": "x_1", "version": 7, "items": [], "next_cursor": null, "protected": false,
        "processes": {},
    });
    Reply::Json(spec.success, value)
}

fn scale(site: &Site, more: &[&str]) {
    site.ends(0, &[&["scale", "web=0"], more].concat());
}

#[test]
fn an_error_in_a_manifest_never_makes_another_app_meant() {
    let (site, double) = local(willing);
    site.succeeds(&["context", "set", "work", "--app", "other"]);
    // Wherever the error is, the app can still be read.
    let wrong = MANIFEST.replace("128MiB", "much");
    site.context.write("fluffy.toml", &wrong).unwrap();
    scale(&site, &[]);
    assert_eq!(apps(&double), ["shop"]);
    for section in ["[app", "[ap]"] {
        let wrong = MANIFEST.replace("[app]", section);
        let file = site.context.write("fluffy.toml", &wrong).unwrap();
        let error = site.json_error(2, &["scale", "web=0"]);
        assert_eq!(error["code"], "manifest_invalid", "{error}");
        assert_eq!(apps(&double), [""; 0], "{section}");
        // Who names the app, or asks for no app, needs no manifest.
        scale(&site, &["--app", "shop"]);
        assert_eq!(apps(&double), ["shop"]);
        site.succeeds(&["apps", "list"]);
        double.asked();
        // The control: where there is no manifest the context says it.
        std::fs::remove_file(file).unwrap();
        scale(&site, &[]);
        assert_eq!(apps(&double), ["other"]);
    }
}
