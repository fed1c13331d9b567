//! Which tier a plugin runs in: the declared one or a stronger one.
//!
//! What the author, the policy or a person asks for is the least; nothing ever
//! lowers it. A plugin of a third party gets the strongest that this machine
//! has and the plugin can run in. An emulated virtual machine is slow, so it
//! is only taken where somebody asked for a virtual machine.

use std::collections::BTreeMap;

use fluffy_contract::isolation::Tier;

use crate::manifest::Execution;

/// Who the plugin is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It came with the product, or is being made here.
    Own,
    /// It was installed from a path or an archive.
    ThirdParty,
}

/// What a machine can do in one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// It is there.
    Here,
    /// A virtual machine without hardware help.
    Emulated,
    /// It is not, for this reason, which says how to fix it.
    Missing {
        /// Why.
        reason: String,
    },
}

/// What decides about a plugin's tier besides its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circumstances {
    /// Who it is from.
    pub origin: Origin,
    /// The least that policy accepts for it.
    pub policy: Option<Tier>,
    /// The least that a person asked for.
    pub asked: Option<Tier>,
    /// What this machine can do; a tier that is not listed is missing.
    pub machine: BTreeMap<Tier, Availability>,
}

/// The tier that was chosen, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub tier: Tier,
    /// Why this one.
    pub because: Because,
}

/// Why a tier was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// Its manifest says so.
    Declared,
    /// Policy accepts no weaker one.
    Policy,
    /// A person asked for no weaker one.
    Asked,
    /// It is of a third party, and this is the strongest there is for it.
    ThirdParty,
    /// The weaker ones that would have done are not to be had.
    Unavailable,
}

/// Why there is no tier for a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChooseTierError {
    /// It cannot run as strongly isolated as is wanted.
    #[error("tier `{least}` or stronger is wanted, and it can run in `{strongest}` at the most")]
    CannotRun {
        /// What is wanted at least.
        least: Tier,
        /// The strongest that it can run in.
        strongest: Tier,
    },
    /// This machine has none of those that it could run in.
    #[error("tier `{tier}` is not to be had here: {reason}")]
    Unavailable {
        /// The weakest that would do.
        tier: Tier,
        /// What is missing, and how to fix it.
        reason: String,
    },
}

/// Chooses the tier for a plugin.
///
/// # Errors
/// When it cannot run, or this machine cannot isolate, as strongly as wanted.
pub fn choose(
    execution: &Execution,
    circumstances: &Circumstances,
) -> Result<Choice, ChooseTierError> {
    let Circumstances { policy, asked, .. } = circumstances;
    let least = [Some(execution.tier), *policy, *asked]
        .into_iter()
        .flatten()
        .max();
    let least = least.unwrap_or(execution.tier);
    let fitting: Vec<Tier> = execution
        .start
        .tiers()
        .iter()
        .copied()
        .filter(|tier| *tier >= least)
        .collect();
    let Some(weakest) = fitting.first().copied() else {
        let strongest = execution.start.tiers().last().copied();
        let strongest = strongest.unwrap_or(execution.tier);
        return Err(ChooseTierError::CannotRun { least, strongest });
    };
    let mut usable = fitting
        .iter()
        .copied()
        .filter(|tier| has(circumstances, *tier, least));
    let chosen = match circumstances.origin {
        Origin::Own => usable.next(),
        Origin::ThirdParty => usable.next_back(),
    };
    let Some(tier) = chosen else {
        let reason = missing(circumstances, weakest);
        return Err(ChooseTierError::Unavailable {
            tier: weakest,
            reason,
        });
    };
    let because = if tier == execution.tier {
        Because::Declared
    } else if Some(tier) == *policy {
        Because::Policy
    } else if Some(tier) == *asked {
        Because::Asked
    } else if circumstances.origin == Origin::ThirdParty {
        Because::ThirdParty
    } else {
        Because::Unavailable
    };
    Ok(Choice { tier, because })
}

fn has(circumstances: &Circumstances, tier: Tier, least: Tier) -> bool {
    match circumstances.machine.get(&tier) {
        Some(Availability::Here) => true,
        // Only where nothing weaker would do, which somebody has to have said.
        Some(Availability::Emulated) => least == tier,
        Some(Availability::Missing { .. }) | None => false,
    }
}

fn missing(circumstances: &Circumstances, tier: Tier) -> String {
    match circumstances.machine.get(&tier) {
        Some(Availability::Missing { reason }) => reason.clone(),
        Some(Availability::Emulated) => {
            "it would be emulated, which has to be asked for".to_owned()
        }
        Some(Availability::Here) | None => "nothing here provides it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use Availability::{Emulated, Here};
    use Origin::{Own, ThirdParty};
    use Tier::{Container, Microvm, Process, Wasm};

    use super::*;
    use crate::manifest::{Limits, Protocol, Reach, Start};

    fn execution(tier: Tier) -> Execution {
        let (command, protocol) = (vec!["./x".to_owned()], Protocol::GoPlugin);
        let image = "x:1".to_owned();
        Execution {
            tier,
            start: match tier {
                Wasm => Start::Module {
                    file: "x.wasm".to_owned(),
                },
                Process => Start::Program { command, protocol },
                Container | Microvm => Start::Image {
                    image,
                    command,
                    protocol,
                },
            },
            environment: BTreeMap::new(),
            sandbox: Reach::default(),
            limits: Limits::default(),
        }
    }

    fn missing() -> Availability {
        let reason = "apt-get install it".to_owned();
        Availability::Missing { reason }
    }

    /// Wasm and process are everywhere; these two may not be.
    fn machine(container: Availability, microvm: Availability) -> BTreeMap<Tier, Availability> {
        BTreeMap::from([
            (Wasm, Here),
            (Process, Here),
            (Container, container),
            (Microvm, microvm),
        ])
    }

    #[test]
    fn the_table_of_choices() {
        let all = || machine(Here, Here);
        let emulated = || machine(Here, Emulated);
        let bare = || machine(missing(), missing());
        for (declared, origin, policy, asked, machine, expected) in [
            (Wasm, Own, None, None, all(), Ok((Wasm, Because::Declared))),
            (
                Wasm,
                ThirdParty,
                None,
                None,
                all(),
                Ok((Process, Because::ThirdParty)),
            ),
            (
                Wasm,
                Own,
                Some(Process),
                None,
                all(),
                Ok((Process, Because::Policy)),
            ),
            (
                Wasm,
                Own,
                Some(Container),
                None,
                all(),
                Err("or stronger is wanted"),
            ),
            (
                Process,
                Own,
                None,
                None,
                all(),
                Ok((Process, Because::Declared)),
            ),
            (
                Process,
                Own,
                Some(Wasm),
                None,
                all(),
                Ok((Process, Because::Declared)),
            ),
            (
                Process,
                Own,
                None,
                Some(Wasm),
                all(),
                Ok((Process, Because::Declared)),
            ),
            (
                Process,
                Own,
                Some(Container),
                None,
                all(),
                Ok((Container, Because::Policy)),
            ),
            (
                Process,
                Own,
                None,
                Some(Container),
                all(),
                Ok((Container, Because::Asked)),
            ),
            (
                Process,
                Own,
                Some(Container),
                None,
                bare(),
                Err("apt-get install it"),
            ),
            (
                Process,
                Own,
                Some(Microvm),
                None,
                all(),
                Err("or stronger is wanted"),
            ),
            (
                Process,
                ThirdParty,
                None,
                None,
                all(),
                Ok((Container, Because::ThirdParty)),
            ),
            (
                Process,
                ThirdParty,
                None,
                None,
                bare(),
                Ok((Process, Because::Declared)),
            ),
            (
                Process,
                ThirdParty,
                Some(Container),
                None,
                bare(),
                Err("apt-get install it"),
            ),
            (
                Container,
                Own,
                None,
                None,
                all(),
                Ok((Container, Because::Declared)),
            ),
            (
                Container,
                Own,
                None,
                None,
                bare(),
                Err("apt-get install it"),
            ),
            (
                Container,
                Own,
                None,
                None,
                machine(missing(), Here),
                Ok((Microvm, Because::Unavailable)),
            ),
            (
                Container,
                Own,
                None,
                None,
                machine(missing(), Emulated),
                Err("apt-get install it"),
            ),
            (
                Container,
                ThirdParty,
                None,
                None,
                all(),
                Ok((Microvm, Because::ThirdParty)),
            ),
            (
                Container,
                ThirdParty,
                None,
                None,
                emulated(),
                Ok((Container, Because::Declared)),
            ),
            (
                Container,
                ThirdParty,
                None,
                Some(Microvm),
                emulated(),
                Ok((Microvm, Because::Asked)),
            ),
            (
                Container,
                Own,
                Some(Microvm),
                None,
                emulated(),
                Ok((Microvm, Because::Policy)),
            ),
            (
                Microvm,
                Own,
                None,
                None,
                emulated(),
                Ok((Microvm, Because::Declared)),
            ),
            (
                Microvm,
                Own,
                None,
                Some(Process),
                all(),
                Ok((Microvm, Because::Declared)),
            ),
            (Microvm, Own, None, None, bare(), Err("apt-get install it")),
            (
                Microvm,
                Own,
                None,
                None,
                BTreeMap::new(),
                Err("nothing here provides it"),
            ),
        ] {
            let circumstances = Circumstances {
                origin,
                policy,
                asked,
                machine,
            };
            let chosen = choose(&execution(declared), &circumstances);
            match (&chosen, expected) {
                (Ok(choice), Ok(expected)) => assert_eq!((choice.tier, choice.because), expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (chosen, expected) => {
                    panic!("{declared} {circumstances:?}: {chosen:?}, not {expected:?}")
                }
            }
        }
    }

    #[test]
    fn nothing_ever_lowers_a_tier() {
        let tiers = [
            None,
            Some(Wasm),
            Some(Process),
            Some(Container),
            Some(Microvm),
        ];
        let states = [Here, Emulated, missing()];
        for declared in tiers.into_iter().flatten() {
            for (policy, asked) in tiers
                .iter()
                .flat_map(|one| tiers.map(|other| (*one, other)))
            {
                for (one, other) in states
                    .iter()
                    .flat_map(|one| states.clone().map(|other| (one.clone(), other)))
                {
                    for origin in [Own, ThirdParty] {
                        let machine = machine(one.clone(), other.clone());
                        let circumstances = Circumstances {
                            origin,
                            policy,
                            asked,
                            machine,
                        };
                        let execution = execution(declared);
                        if let Ok(Choice { tier, .. }) = choose(&execution, &circumstances) {
                            assert!(
                                tier >= declared && Some(tier) >= policy && Some(tier) >= asked
                            );
                            assert!(execution.start.tiers().contains(&tier));
                            assert!(!matches!(
                                circumstances.machine[&tier],
                                Availability::Missing { .. }
                            ));
                        }
                    }
                }
            }
        }
    }
}
