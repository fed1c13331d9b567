//! What an operator looks at on a node: whether the machine can be one, whether
//! an instance is held, whether images are sound. Changes nothing.

use std::path::PathBuf;

use fluffy_node::{Audited, Verdict, audit, claim, doctor};
use fluffy_report::{Cell, Column, ExitCode, Report, Table, Tone};
use serde_json::json;

use super::{drivers, group, run_dir, store};
use crate::args::{NodeAuditArgs, NodeDoctorArgs, NodeVerifyArgs};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

pub(super) async fn examine(session: &Session, args: &NodeDoctorArgs) -> Outcome {
    let data = &args.folder.data;
    let folder = match data.is_dir() {
        true => data.clone(),
        false => PathBuf::from("/"),
    };
    let checks = doctor(&folder, &drivers(data), args.images.unfold_images).await;
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    let word = |verdict| match verdict {
        Verdict::Pass => ("pass", Tone::Good),
        Verdict::Warn => ("warn", Tone::Caution),
        Verdict::Fail => ("fail", Tone::Bad),
    };
    if session.json() {
        let items: Vec<_> = checks
            .iter()
            .map(|check| {
                let (verdict, _) = word(check.verdict);
                json!({"name": check.name, "verdict": verdict, "detail": check.detail})
            })
            .collect();
        session.printer.json(&json!({
            "api_version": "v1", "kind": "NodeDoctor", "can_be_node": !failed, "checks": items,
        }))?;
    } else {
        let mut table = Table::new([Column::new("what"), Column::new(""), Column::new("found")]);
        for check in &checks {
            let (verdict, tone) = word(check.verdict);
            table.row([
                Cell::new(check.name),
                Cell::new(verdict).tone(tone),
                Cell::new(&check.detail),
            ]);
        }
        session.printer.table(&table)?;
    }
    Ok(match failed {
        true => ExitCode::Failure,
        false => ExitCode::Success,
    })
}

pub(super) fn look_at(session: &Session, args: &NodeAuditArgs) -> Outcome {
    let folder = &args.folder.data;
    // The folder of what it runs is named by the agent as it was given.
    let short = args.instance.rsplit('_').next().unwrap_or_default();
    let of = Audited {
        group: group(folder),
        instance: args.instance.clone(),
        run_dir: run_dir(folder).join(short.to_ascii_lowercase()),
        dir: folder.join("instances").join(&args.instance),
    };
    let Some(checks) = audit(&of) else {
        let what = format!("no instance `{}` runs here", args.instance);
        return Err(Report::new(ExitCode::NotFound, what)
            .why(format!(
                "the node of `{}` has no such one",
                folder.display()
            ))
            .fix("see `fluffy instances list`; --data says where the node keeps everything")
            .into());
    };
    let holds = checks.iter().all(|check| check.holds);
    if session.json() {
        let items: Vec<_> = checks
            .iter()
            .map(|it| json!({"name": it.name, "holds": it.holds, "detail": it.detail}))
            .collect();
        session.printer.json(&json!({
            "api_version": "v1", "kind": "InstanceAudit", "instance_id": args.instance,
            "isolation": "shared-kernel", "holds": holds, "checks": items,
        }))?;
    } else {
        let mut table = Table::new([Column::new("what"), Column::new(""), Column::new("found")]);
        for check in &checks {
            let (word, tone) = match check.holds {
                true => ("holds", Tone::Good),
                false => ("FAILS", Tone::Bad),
            };
            table.row([
                Cell::new(check.name),
                Cell::new(word).tone(tone),
                Cell::new(&check.detail),
            ]);
        }
        session.printer.table(&table)?;
    }
    Ok(match holds {
        true => ExitCode::Success,
        false => ExitCode::Failure,
    })
}

pub(super) fn verify(session: &Session, args: &NodeVerifyArgs) -> Outcome {
    let folder = &args.folder.data;
    // Whoever opens a store removes what another has not finished.
    let _claimed = claim(folder).map_err(|error| {
        let fix = "end the node's agent first; its instances go on";
        Failure::of(ExitCode::Conflict, &error, fix)
    })?;
    let damaged = store(folder, args.images).and_then(|store| store.verify());
    let damaged = damaged.map_err(|error| failure::unreadable(folder, &error))?;
    if session.json() {
        let items: Vec<_> = damaged
            .iter()
            .map(|it| json!({"path": it.path.display().to_string(), "what": it.what}))
            .collect();
        session.printer.json(&json!({
            "api_version": "v1", "kind": "ImageCache", "sound": items.is_empty(),
            "damaged": items,
        }))?;
    } else {
        for it in &damaged {
            let line = format!("{}: {}", it.path.display(), it.what);
            session.printer.data(&line)?;
        }
        if damaged.is_empty() {
            session.printer.data("every image is what it was")?;
        } else {
            session
                .printer
                .note("remove these; they are fetched again when they are needed");
        }
    }
    Ok(match damaged.is_empty() {
        true => ExitCode::Success,
        false => ExitCode::Failure,
    })
}
