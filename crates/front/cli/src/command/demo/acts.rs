//! What the demo plays, act by act.

use std::collections::BTreeMap;
use std::fs;

use fluffy_gate::{AuthorizeError, Bundle};
use fluffy_ledger::verify::{Verification, VerifyOptions, verify_path};
use fluffy_ledger::{ExportOptions, proof::Proof};
use fluffy_policy::starter::STARTER;
use fluffy_policy::token::Presented;
use fluffy_policy::{Context, Request, Verdict};
use fluffy_report::{Cell, Column, ExitCode, Report, Table};

use super::stage::{Stage, no_room};
use crate::command::audit::show;
use crate::command::person;
use crate::command::policy::{diff, explain};
use crate::failure::{self, Failure};

/// What the agent tries in the first act.
const ATTEMPTS: &[(&str, &str)] = &[
    ("fs.read", "/src/lib.rs"),
    ("fs.write", "/src/lib.rs"),
    ("test.run", ""),
    ("fs.read", "/.env"),
    ("fs.write", "/Cargo.toml"),
    ("fs.write", "/.fluffy/policy.yaml"),
    ("net.connect", "paste.example.com:443"),
    ("fs.write", "/../../etc/passwd"),
];

/// A guard that no rule could express.
const EXTENSION: &str = r#"
export const actions = ["fs.write"];

export function evaluate(request: { resource?: string }) {
  const path: string = request.resource ?? "";
  if (/(^|\/)[^\/]*\.generated\.[a-z]+$/.test(path)) {
    return { verdict: "deny", reason: "Generated files are not written by hand" };
  }
  return "pass";
}
"#;

/// Act 1: the engine decides, default deny.
pub(super) fn decide(stage: &Stage<'_>) -> Result<(), Failure> {
    stage.act(
        1,
        "An agent asks, the policy decides. What no rule allows is denied.",
    )?;
    let mut table = Table::new([
        Column::new("DECISION").whole(),
        Column::new("ACTION").whole(),
        Column::new("RESOURCE"),
        Column::new("BECAUSE"),
    ]);
    for (action, resource) in ATTEMPTS {
        let (verdict, because) = ask(stage, &request(stage, action, resource))?;
        table.row([
            Cell::new(explain::verdict_words(verdict)).tone(explain::tone(verdict)),
            Cell::new(*action),
            Cell::new(*resource),
            Cell::new(because),
        ]);
    }
    print(stage, &table)
}

/// Act 2: a person answers a review; the answer is good once.
pub(super) fn answer_a_review(stage: &Stage<'_>) -> Result<(), Failure> {
    stage.act(
        2,
        "A person answers a review. The answer is a token: for this call, once.",
    )?;
    let request = stage.request("fs.write", "/Cargo.toml");
    let answers = ["shipped:sensitive-files".to_owned()];
    let approved = stage
        .gate
        .approve(&request, &answers, "you")
        .map_err(|error| {
            Failure::of(
                ExitCode::Internal,
                &error,
                "please report this: the demo's own approval",
            )
        })?;
    for (counter, what) in [(1, "with the token"), (2, "with the same token again")] {
        let presented = Presented {
            token: &approved.token,
            counter,
        };
        let verdict = match stage.gate.authorize_with_token(&request, &presented) {
            Ok(_) => Verdict::Allow,
            Err(AuthorizeError::Refused { refusal, .. }) => refusal.decision().verdict(),
            Err(error) => return Err(failure::not_recorded(&error).into()),
        };
        let words = explain::verdict_words(verdict);
        stage.say(&format!("  fs.write /Cargo.toml {what}: {words}"))?;
    }
    Ok(())
}

/// Act 3: a new policy is tried on history before it holds.
pub(super) fn change_the_policy(stage: &Stage<'_>) -> Result<(), Failure> {
    stage.act(
        3,
        "A stricter policy with a TypeScript guard, tried on what was decided so far:",
    )?;
    let stricter = STARTER.replace(
        "  - name: large-writes",
        "  - name: no-tests-today\n    match: { action: test.run }\n    do: deny\n    \
         reason: The test machine is down\n\n  - name: large-writes",
    );
    let extensions = BTreeMap::from([("generated".to_owned(), EXTENSION.to_owned())]);
    let bundle = Bundle {
        policy: stricter,
        extensions,
    };
    let proposal = stage
        .gate
        .propose(bundle, 100)
        .map_err(|error| failure::propose(&error, None))?;
    if stage.printer().is_some() {
        diff::show(stage.session, &proposal.trial)?;
    }
    let update = Request {
        principal: person::principal(&["policy.update.*"])?,
        action: "policy.update".to_owned(),
        resource: Some("demo".to_owned()),
        context: Context::default(),
    };
    let digest = stage
        .gate
        .update(&proposal, &update)
        .map_err(|error| failure::update(&error))?;
    let digest = digest.to_string();
    let short = digest.get(..16).unwrap_or(&digest);
    stage.say(&format!("  applied, pinned as {short}…, in force at once:"))?;
    for (action, resource) in [("test.run", ""), ("fs.write", "/src/api.generated.rs")] {
        let (verdict, because) = ask(stage, &request(stage, action, resource))?;
        let words = explain::verdict_words(verdict);
        stage.say(&format!("  {action} {resource} {words}: {because}"))?;
    }
    Ok(())
}

/// Act 4: everything above is in the ledger, and it verifies.
pub(super) fn read_the_ledger(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.act(
        4,
        "Everything above is in the ledger, hashed together and signed:",
    )?;
    stage.ledger.flush_blocking().map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "make room in the temporary folder",
        )
    })?;
    let events = stage
        .ledger
        .last_where(6, |_| true)
        .map_err(|e| failure::read_ledger(&e))?;
    let mut table = show::table();
    for event in &events {
        table.row(show::row(event));
    }
    print(stage, &table)?;
    let seen = stage.ledger.verify(&VerifyOptions::default());
    let seen = seen.map_err(|error| failure::verify(&error))?;
    expect_sound(&seen)?;
    stage.say(&format!("  verified: {} events, tree root", seen.events))?;
    stage.say(&format!("  {}", seen.root))
}

/// Act 5: one event, believed by somebody who has nothing but the key.
pub(super) fn prove_one_event(stage: &Stage<'_>) -> Result<(), Failure> {
    stage.act(
        5,
        "A proof of one event, for somebody who has nothing but the public key:",
    )?;
    let denied = stage
        .ledger
        .last_where(1, |event| event.payload.as_str().contains("\"/.env\""))
        .map_err(|error| failure::read_ledger(&error))?;
    let seq = denied.first().map_or(1, |event| event.seq);
    let proof = stage
        .ledger
        .prove(seq, &stage.signing())
        .map_err(|error| failure::prove(&error))?
        .to_string();
    let key = stage.ledger.public_key().ok_or_else(|| {
        Failure::from(Report::new(
            ExitCode::Internal,
            "the demo's ledger has no key",
        ))
    })?;
    let read = Proof::parse(&proof).map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "please report this: the demo's own proof",
        )
    })?;
    read.check(&key).map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "please report this: the demo's own proof",
        )
    })?;
    stage.say(&format!("  {}", show::line(&read.event)))?;
    stage.say(&format!(
        "  holds: {} bytes, {} hashes up to the root, which is signed by",
        proof.len(),
        read.path.len()
    ))?;
    stage.say(&format!("  {key}"))
}

/// Act 6: somebody changes the record, and is found.
pub(super) fn tamper(stage: &Stage<'_>) -> Result<(), Failure> {
    stage.act(
        6,
        "Somebody turns a deny into an allow in a copy of the record, or cuts its end:",
    )?;
    let checkpoint = stage
        .ledger
        .head()
        .map_err(|error| failure::read_ledger(&error))
        .map(|head| stage.ledger.checkpoint_covering(head.seq, &stage.signing()))?
        .map_err(|error| failure::prove(&error))?;
    let mut export = Vec::new();
    let options = ExportOptions {
        checkpoint: Some(checkpoint.clone()),
        ..Default::default()
    };
    stage
        .ledger
        .export(&mut export, &options)
        .map_err(|error| failure::export(&error))?;
    let honest = String::from_utf8_lossy(&export).into_owned();
    let changed = honest.replacen("\"decision\":\"deny\"", "\"decision\":\"allow\"", 1);
    let lines: Vec<&str> = honest.lines().collect();
    let cut = lines
        .get(..lines.len().saturating_sub(4))
        .unwrap_or_default()
        .join("\n")
        + "\n";
    let options = VerifyOptions {
        against: vec![checkpoint.to_string()],
        key: stage.ledger.public_key(),
        ..VerifyOptions::default()
    };
    for (name, text, what) in [
        ("honest.jsonl", &honest, "untouched"),
        ("changed.jsonl", &changed, "one word changed"),
        ("cut.jsonl", &cut, "the end cut off"),
    ] {
        let path = stage.ledger_folder().join(name);
        fs::write(&path, text).map_err(|error| no_room(&error))?;
        let seen = verify_path(&path, &options).map_err(|error| failure::verify(&error))?;
        match &seen.verdict {
            Ok(()) => stage.say(&format!("  {what}: sound"))?,
            Err(finding) => {
                stage.say(&format!("  {what}: BROKEN at event {}", finding.seq))?;
                stage.say(&format!("    {}", finding.detail))?;
            }
        }
        let expected_sound = name == "honest.jsonl";
        if seen.is_sound() != expected_sound {
            let report = Report::new(ExitCode::Internal, "verification said the opposite")
                .fix("please report this with the output above");
            return Err(report.into());
        }
    }
    Ok(())
}

fn request(stage: &Stage<'_>, action: &str, resource: &str) -> Request {
    let mut request = stage.request(action, resource);
    request.resource = request.resource.filter(|resource| !resource.is_empty());
    request
}

/// Asks the gate; also why, in one line.
fn ask(stage: &Stage<'_>, request: &Request) -> Result<(Verdict, String), Failure> {
    match stage.gate.authorize(request) {
        Ok(_) => Ok((Verdict::Allow, "a rule allows it".to_owned())),
        Err(AuthorizeError::Refused { refusal, .. }) => {
            let decision = refusal.decision();
            let because = decision
                .reasons()
                .next()
                .unwrap_or("no rule allows it")
                .to_owned();
            Ok((decision.verdict(), because))
        }
        Err(error) => Err(failure::not_recorded(&error).into()),
    }
}

fn expect_sound(seen: &Verification) -> Result<(), Failure> {
    match &seen.verdict {
        Ok(()) => Ok(()),
        Err(finding) => Err(
            Report::new(ExitCode::Internal, "the demo's ledger is broken")
                .why(finding.to_string())
                .fix("please report this with the output above")
                .into(),
        ),
    }
}

fn print(stage: &Stage<'_>, table: &Table) -> Result<(), Failure> {
    match stage.printer() {
        Some(printer) => Ok(printer.table(table)?),
        None => Ok(()),
    }
}
