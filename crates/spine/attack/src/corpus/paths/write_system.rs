//! Creates a file among the programs and the settings of the system.
//!
//! Removed at once where that works.

use std::fs;
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("write-system", Family::Paths, Guard::MountTable, attempt)
        .gains("adds programs or settings to the system")
        .also_stopped_by(&[Guard::Landlock])
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let folders = ["/usr/bin", "/usr/lib", "/etc", "/bin", "/opt"];
    Outcome::best(folders.map(|folder| {
        let path = Path::new(folder).join(stage.unique());
        let outcome = look::create(&path, "planted");
        // Only there if it was created just now.
        let _removed = fs::remove_file(&path);
        outcome
    }))
}
