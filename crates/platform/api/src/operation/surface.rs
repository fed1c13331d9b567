//! Where an operation can be done: command line, terminal UI, web console.
//!
//! The registry of parity between surfaces. A new operation is mapped here or
//! its test fails; a surface that is made fills its column. Decides nothing.

use super::{Operation, Spec};

/// Whether one surface has an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// It has.
    Yes,
    /// It will, when the surface is there.
    NotYet,
    /// It will not, because.
    No(&'static str),
}

/// Where one operation can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surfaces {
    /// The `fluffy` command.
    pub cli: Surface,
    /// The terminal UI.
    pub terminal: Surface,
    /// The web console.
    pub web: Surface,
}

/// Where the operations of some words belong.
#[derive(Debug, Clone, Copy)]
enum Belongs {
    /// On every surface.
    Everywhere,
    /// On every surface, but nothing is changed on the web.
    ReadOnWeb,
    /// In scripts of operators.
    Scripts,
    /// At the place where one logs in; a surface has its own way.
    Login,
}

const READ_ONLY: &str = "the web shows it and changes nothing";
const SCRIPTS: &str = "operators do it in scripts";
const LOGIN: &str = "each surface logs in its own way";

/// The words of commands, and where they belong; the longest that fit count.
const WORDS: &[(&str, Belongs)] = &[
    ("approvals", Belongs::Everywhere),
    ("apps", Belongs::Everywhere),
    ("attachments", Belongs::ReadOnWeb),
    ("capabilities", Belongs::Everywhere),
    ("deploy", Belongs::Everywhere),
    ("deploys", Belongs::Everywhere),
    ("envs", Belongs::Everywhere),
    ("events", Belongs::Everywhere),
    ("events archive", Belongs::Scripts),
    ("events platform", Belongs::Scripts),
    ("events rebuild", Belongs::Scripts),
    ("events verify", Belongs::Scripts),
    ("events views", Belongs::Scripts),
    ("grants", Belongs::Everywhere),
    ("instances", Belongs::Everywhere),
    ("ipv4", Belongs::ReadOnWeb),
    ("keys", Belongs::Scripts),
    ("login", Belongs::Login),
    ("logout", Belongs::Login),
    ("logs", Belongs::Everywhere),
    ("members", Belongs::Everywhere),
    ("nodes", Belongs::Scripts),
    ("orgs", Belongs::Everywhere),
    ("orgs export", Belongs::Scripts),
    ("orgs policy", Belongs::Scripts),
    ("principals", Belongs::Everywhere),
    ("projects", Belongs::Everywhere),
    ("quotas", Belongs::Scripts),
    ("releases", Belongs::Everywhere),
    ("restores", Belongs::ReadOnWeb),
    ("rollback", Belongs::Everywhere),
    ("routes", Belongs::ReadOnWeb),
    ("scale", Belongs::Everywhere),
    ("secrets", Belongs::ReadOnWeb),
    ("snapshots", Belongs::ReadOnWeb),
    ("status", Belongs::Everywhere),
    ("tokens", Belongs::Everywhere),
    ("volumes", Belongs::ReadOnWeb),
    ("volumes rehome", Belongs::Scripts),
    ("wait", Belongs::Everywhere),
    ("whoami", Belongs::Everywhere),
];

impl Operation {
    /// Where it can be done; none if nobody has said so.
    #[must_use]
    pub fn surfaces(self) -> Option<Surfaces> {
        of(self.spec())
    }
}

fn of(spec: &Spec) -> Option<Surfaces> {
    // What is no command is nothing for a person on another surface either.
    if let Some(reason) = spec.cli.strip_prefix("no: ") {
        let no = Surface::No(reason);
        return Some(Surfaces {
            cli: no,
            terminal: no,
            web: no,
        });
    }
    let rows = WORDS.iter().filter(|(words, _)| {
        let rest = spec.cli.strip_prefix(words);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    let (_, belongs) = rows.max_by_key(|(words, _)| words.len())?;
    let (terminal, web) = match belongs {
        Belongs::Everywhere => (Surface::NotYet, Surface::NotYet),
        Belongs::ReadOnWeb if spec.is_write() => (Surface::NotYet, Surface::No(READ_ONLY)),
        Belongs::ReadOnWeb => (Surface::NotYet, Surface::NotYet),
        Belongs::Scripts => (Surface::No(SCRIPTS), Surface::No(SCRIPTS)),
        Belongs::Login => (Surface::No(LOGIN), Surface::No(LOGIN)),
    };
    Some(Surfaces {
        cli: Surface::Yes,
        terminal,
        web,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_mapped_to_every_surface() {
        for operation in Operation::ALL {
            let id = operation.spec().id;
            let surfaces = operation.surfaces();
            let surfaces = surfaces.unwrap_or_else(|| panic!("{id} is not mapped: add its words"));
            for surface in [surfaces.cli, surfaces.terminal, surfaces.web] {
                if let Surface::No(reason) = surface {
                    assert!(reason.len() > 10, "{id} has no reason");
                }
            }
            assert_ne!(surfaces.cli, Surface::NotYet, "{id}");
        }
        // The control: words that nobody mapped are found out.
        let stranger = Spec {
            cli: "deploying now",
            ..*Operation::GetApp.spec()
        };
        assert_eq!(of(&stranger), None);
    }

    #[test]
    fn every_word_is_of_some_operation() {
        for (words, _) in WORDS {
            let used = Operation::ALL.iter().any(|operation| {
                let rest = operation.spec().cli.strip_prefix(words);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            });
            assert!(used, "{words}");
        }
        assert!(WORDS.is_sorted_by_key(|(words, _)| *words), "sort them");
    }

    #[test]
    fn the_matrix_is_the_specification_s() {
        let web = |operation: Operation| operation.surfaces().unwrap().web;
        let terminal = |operation: Operation| operation.surfaces().unwrap().terminal;
        for everywhere in [
            Operation::CreateDeploy,
            Operation::CreateRollback,
            Operation::SetScale,
            Operation::GetStatus,
            Operation::GetLogs,
            Operation::ListEvents,
            Operation::ListInstances,
            Operation::DecideApproval,
            Operation::CreateExec,
            Operation::ConnectExec,
        ] {
            assert_eq!(web(everywhere), Surface::NotYet, "{everywhere:?}");
            assert_eq!(terminal(everywhere), Surface::NotYet, "{everywhere:?}");
        }
        for (read, write) in [
            (Operation::ListRoutes, Operation::CreateRoute),
            (Operation::GetSecrets, Operation::UpdateSecrets),
            (Operation::ListVolumes, Operation::DeleteVolume),
            (Operation::ListSnapshots, Operation::RestoreSnapshot),
        ] {
            assert_eq!(web(read), Surface::NotYet, "{read:?}");
            assert_eq!(web(write), Surface::No(READ_ONLY), "{write:?}");
            assert_eq!(terminal(write), Surface::NotYet, "{write:?}");
        }
        for script in [
            Operation::DrainNode,
            Operation::RotateKeys,
            Operation::SetQuotas,
            Operation::RebuildViews,
            Operation::SetPolicy,
        ] {
            assert_eq!(web(script), Surface::No(SCRIPTS), "{script:?}");
            assert_eq!(terminal(script), Surface::No(SCRIPTS), "{script:?}");
        }
    }
}
