//! The second wall behind the mounts: Landlock, over init and all that it
//! starts.
//!
//! Everything in the instance is one domain, so that its processes go on
//! seeing each other. It may use all its files; it makes no device, speaks to
//! none outside `/dev`, and its mounts are fixed: the kernel lets nobody
//! behind such a wall change them, whatever privileges were won.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

/// The least that the kernel must know, as for the sandboxes of tools.
const LEAST: ABI = ABI::V2;
/// The newest that was tried; what an older kernel lacks is left out.
const NEWEST: ABI = ABI::V6;

/// Raises the wall, for good.
pub(crate) fn raise() -> Result<(), Box<dyn std::error::Error>> {
    let mut files = AccessFs::from_all(NEWEST);
    files.remove(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, files))?
        .add_rule(PathBeneath::new(
            PathFd::new("/dev")?,
            files | AccessFs::IoctlDev,
        ))?
        .restrict_self()?;
    Ok(())
}
