//! The rules that operators are given ask for figures that there are.

use std::collections::BTreeMap;

use fluffy_api::Operation;
use fluffy_planner::reason::FailureReason;
use serde_json::{Value, json};

use crate::house::House;

const RULES: &str = include_str!("../../../../../docs/alerts.yml");

/// What a rule asks for: a name, and labels with how and by what they are held.
#[derive(Debug)]
struct Selector<'t> {
    name: &'t str,
    labels: Vec<(&'t str, &'t str, &'t str)>,
}

fn selectors(text: &str) -> Vec<Selector<'_>> {
    let is_name = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
    let found = text.match_indices("fluffy_").map(|(at, _)| {
        let rest = &text[at..];
        let (name, rest) = rest.split_at(rest.find(|it| !is_name(it)).unwrap());
        let within = rest.strip_prefix('{').and_then(|it| it.split_once('}'));
        let pairs = within.map_or("", |(within, _)| within).split("\",");
        let label = |pair: &'_ str| -> Option<(usize, usize)> {
            let quote = pair.find('"')?;
            let name = pair.find(|it| !is_name(it))?;
            Some((name, quote))
        };
        let labels = pairs.filter_map(|pair| {
            let (name, quote) = label(pair)?;
            let value = pair[quote + 1..].trim_end_matches('"');
            Some((&pair[..name], &pair[name..quote], value))
        });
        Selector {
            name,
            labels: labels.collect(),
        }
    });
    found.collect()
}

/// The lines of the rules that a server of Prometheus works out.
fn expressions() -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for rule in RULES.split("- alert:").skip(1) {
        let (_, rest) = rule.split_once("expr:").unwrap();
        let lines = rest.lines().take_while(|line| {
            let line = line.trim_start();
            !["for:", "labels:"].iter().any(|end| line.starts_with(end))
        });
        found.push(lines.collect::<Vec<_>>().join(" "));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_figure_that_a_rule_asks_for_is_served() {
    let house = House::start().await;
    let owner = house.owner().await;
    let app = json!({ "name": "shop" });
    let _: Value = owner
        .send(Operation::CreateApp, &["local"], &app)
        .await
        .unwrap();
    let _: Value = owner.get(Operation::ListApps, &["local"]).await.unwrap();
    let text = house.metrics().await;
    let mut served = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.strip_prefix("# TYPE ").unwrap_or_default().split(' ');
        if let (Some(name), Some(kind)) = (words.next(), words.next()) {
            assert!(served.insert(name, kind).is_none(), "{name} is there twice");
        }
    }
    let of_histogram = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        let mut names = parts.iter().filter_map(|part| name.strip_suffix(part));
        names.any(|name| served.get(name) == Some(&"histogram"))
    };
    let expressions = expressions();
    let asked: Vec<_> = expressions.iter().flat_map(|it| selectors(it)).collect();
    assert!(
        asked.len() > expressions.len() && expressions.len() > 10,
        "{asked:?}"
    );
    for Selector { name, labels } in asked {
        let is_served = served.contains_key(name) && served[name] != "histogram";
        assert!(is_served || of_histogram(name), "{name}");
        for (label, how, value) in labels {
            let mut samples = text.lines().filter(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            match (label, how) {
                ("reason", "=~") => {
                    let known = value
                        .split('|')
                        .all(|it| FailureReason::parse(it).is_some());
                    assert!(known, "{value}");
                }
                (_, "=") => {
                    let wanted = format!("{label}=\"{value}\"");
                    assert!(samples.any(|it| it.contains(&wanted)), "{name} {wanted}");
                }
                _ => {
                    let wanted = format!("{label}=\"");
                    assert!(samples.any(|it| it.contains(&wanted)), "{name} {wanted}");
                }
            }
        }
    }
    // The bounds that have been promised.
    for bound in ["> 2", "> 5", ">= 0.8", "> 0.001", "< 0.95", "< 0.99"] {
        let mut ends = expressions
            .iter()
            .filter(|it| it.trim_end().ends_with(bound));
        assert!(ends.next().is_some(), "{bound}");
    }
}
